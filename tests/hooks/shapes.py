"""Models with special graphs, one for each row of the support matrix. All take inputs of shape (n, 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

__all__ = [
    "SHAPES",
    "Checkpoints",
    "Frozen",
    "HalfWithoutGradient",
    "InPlace",
    "Nests",
    "Ragged",
    "Reuses",
    "Shares",
]


class Reuses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.Tanh()

    def forward(self, x: torch.Tensor) -> Any:
        return self.act(self.fc(self.act(self.fc(x))))


class Shares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        self.outer.weight = self.inner.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.outer(self.inner(x).tanh())


class Checkpoints(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.block = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc2(self.act(self.fc1(x).mul_(2.0)))


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.base(x).tanh())


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.fc(x)
        return {"y": y, "more": (None, [y.tanh()]), "nothing": None}


class Nests(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> Any:
        found = self.inner(x)
        return found["y"] + found["more"][1][0]


class Pools(nn.Module):
    """Takes a jagged tensor and returns a row for each of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 1, 3])))


class Ragged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pools = Pools()

    def forward(self, x: torch.Tensor) -> Any:
        return self.pools(x).values()


class HalfWithoutGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = self.encoder(x)
        return self.head(y)


SHAPES: dict[str, Callable[[], nn.Module]] = {
    "reused modules": Reuses,
    "shared parameters": Shares,
    "activation checkpointing, reentrant": lambda: Checkpoints(True),
    "activation checkpointing, non-reentrant": lambda: Checkpoints(False),
    "in-place activations": InPlace,
    "frozen parameters": Frozen,
    "nested outputs": Nests,
    "nested and ragged tensors": Ragged,
    "DataParallel": lambda: nn.DataParallel(Reuses()),
    "no_grad and inference_mode": HalfWithoutGradient,
}
