"""Small modules of different structure, which report their calls to a listener.

Every root maps a tensor of shape (batch, 4) to a tensor of the same shape, so every sequence of roots is a
model. The code of the module itself reports a call: neither hooks of torch nor tdcore are involved. Threads:
the training thread. One listener at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

__all__ = ["FEATURES", "FROZEN", "KINDS", "Listener", "MSELoss", "Root", "listening", "make_root"]

FEATURES = 4
FROZEN = "teacher"  # the kind whose parameters do not require gradients


class Listener(Protocol):
    """Receives every call of a module of this file."""

    def enter(self, module: nn.Module, *values: torch.Tensor) -> None:
        """Record that the forward of the module begins with these inputs."""

    def leave(self, module: nn.Module, value: torch.Tensor) -> None:
        """Record that the forward of the module has returned this output."""


_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report all calls within the block to the listener."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _reported(module: nn.Module, compute: Callable[[], Any], *values: torch.Tensor) -> Any:
    for listener in _listeners:
        listener.enter(module, *values)
    result = compute()
    for listener in _listeners:
        listener.leave(module, result)
    return result


class Linear(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return _reported(self, lambda: nn.Linear.forward(self, x), x)


class Conv2d(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> Any:
        return _reported(self, lambda: nn.Conv2d.forward(self, x), x)


class ReLU(nn.ReLU):
    def forward(self, x: torch.Tensor) -> Any:
        return _reported(self, lambda: nn.ReLU.forward(self, x), x)


class Tanh(nn.Tanh):
    def forward(self, x: torch.Tensor) -> Any:
        return _reported(self, lambda: nn.Tanh.forward(self, x), x)


class Dropout(nn.Dropout):
    def forward(self, x: torch.Tensor) -> Any:
        return _reported(self, lambda: nn.Dropout.forward(self, x), x)


class Embedding(nn.Embedding):
    def forward(self, x: torch.Tensor) -> Any:
        return _reported(self, lambda: nn.Embedding.forward(self, x), x)


class MSELoss(nn.MSELoss):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        return _reported(self, lambda: nn.MSELoss.forward(self, x, target), x, target)


class Root(nn.Module):
    """Base class of the roots. compute: the same as forward, as a method that only calls submodules."""

    def compute(self, x: torch.Tensor) -> Any:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> Any:
        return _reported(self, lambda: self.compute(x), x)


class Mlp(Root):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = Linear(FEATURES, 5), ReLU(inplace=True), Linear(5, FEATURES)

    def compute(self, x: torch.Tensor) -> Any:
        return self.fc2(self.act(self.fc1(x)))


class Conv(Root):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.head = Conv2d(1, 2, 1), ReLU(inplace=True), Linear(8, FEATURES)

    def compute(self, x: torch.Tensor) -> Any:
        return self.head(self.act(self.conv(x.reshape(-1, 1, 2, 2))).reshape(-1, 8))


class Twice(Root):
    """A layer that runs twice in a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.tanh = Linear(FEATURES, FEATURES), Tanh()

    def compute(self, x: torch.Tensor) -> Any:
        return self.fc(self.tanh(self.fc(x)))


class Table(Root):
    """An embedding with integer inputs; the residual connection passes gradients to earlier roots."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc = Embedding(6, FEATURES), Linear(FEATURES, FEATURES)

    def compute(self, x: torch.Tensor) -> Any:
        rows = self.table((x.detach()[:, 0].abs() * 3).long() % 6)
        return self.fc(rows) + x


class Scaled(Root):
    """A root whose parameter names contain neither "weight" nor "bias"."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = Linear(FEATURES, FEATURES)
        self.gain = nn.Parameter(torch.ones(FEATURES))
        self.shift = nn.Parameter(torch.zeros(FEATURES))

    def compute(self, x: torch.Tensor) -> Any:
        return self.fc(x) * self.gain + self.shift


class Frozen(Mlp):
    """A root whose first layer is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1.requires_grad_(False)


class Teacher(Mlp):
    """A root whose layers are all frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Spare(Root):
    """A root with a layer that no forward calls."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.spare = Linear(FEATURES, FEATURES), Linear(FEATURES, 2)

    def compute(self, x: torch.Tensor) -> Any:
        return self.fc(x)


class Recomputed(Root):
    """A root with activation checkpointing: backward() calls the first layers again."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = Linear(FEATURES, 5), Tanh(), Linear(5, FEATURES)

    def compute(self, x: torch.Tensor) -> Any:
        inner = checkpoint(lambda value: self.act(self.fc1(value)), x, use_reentrant=False)
        return self.fc2(inner)


class Dropped(Root):
    """A root with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = Linear(FEATURES, FEATURES), Dropout(0.5)

    def compute(self, x: torch.Tensor) -> Any:
        return self.drop(self.fc(x)) + x


_ROOTS: dict[str, type[Root]] = {
    "mlp": Mlp,
    "conv": Conv,
    "twice": Twice,
    "table": Table,
    "scaled": Scaled,
    "frozen": Frozen,
    "spare": Spare,
    "recomputed": Recomputed,
    "dropped": Dropped,
    FROZEN: Teacher,
}
KINDS = tuple(_ROOTS)


def make_root(kind: str) -> Root:
    """Create a module of this kind."""
    return _ROOTS[kind]()
