"""The model and data of the trainings on many ranks. The same training in one process is the reference.

The ranks and the tests import this module.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

__all__ = ["STEPS", "Net", "batch", "loss_of", "twin"]

STEPS = 3
ROWS = 8  # rows of the whole batch: two for each of four ranks


class Net(nn.Module):
    """Three layers.

    Four ranks cannot split their 10, 7 and 3 rows evenly; `hidden` and `middle` change the sizes.
    """

    def __init__(self, hidden: int = 10, middle: int = 7) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.fc1 = nn.Linear(6, hidden)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(hidden, middle)
        self.head = nn.Linear(middle, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the layers; layers of other pipeline stages are None."""
        for layer in (self.fc1, self.act, self.fc2, self.head):
            x = layer(x) if layer is not None else x
        return x


def batch(step: int, rank: int | None = None, ranks: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of a step: of the whole batch, or of one rank."""
    generator = torch.Generator().manual_seed(100 + step)
    x, y = torch.randn(ROWS, 6, generator=generator), torch.randn(ROWS, 3, generator=generator)
    if rank is None:
        return x, y
    each = ROWS // ranks
    return x[rank * each : (rank + 1) * each], y[rank * each : (rank + 1) * each]


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean over rows, so that the mean over ranks equals the loss of the whole batch."""
    return nn.functional.mse_loss(output, target)


@cache
def twin(hidden: int, middle: int) -> dict[tuple[str, int], npt.NDArray[Any]]:
    """Train in one process; return weights, gradients and momentum by (name, step)."""
    model = Net(hidden, middle)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    found: dict[tuple[str, int], npt.NDArray[Any]] = {}
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            state = optimizer.state[parameter].get("momentum_buffer")
            found[f"Net_{name}", step] = parameter.detach().numpy().copy()
            found[f"gradient/Net_{name}", step] = parameter.grad.numpy().copy()
            if state is not None:
                found[f"optimizer/momentum_buffer/Net_{name}", step] = state.numpy().copy()
        optimizer.step()
    return found
