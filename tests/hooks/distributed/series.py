"""Training with gradient scaling and clipping, and its opt-in series, on one rank or on many.

The ranks and the tests import this module. `series_twin` runs the same training in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from .models import STEPS, Net, batch, loss_of

__all__ = ["SERIES", "series_twin", "train_series"]

SERIES = ("backward_gradients", "microbatch_gradients", "weight_updates", "update_ratios")
CLIP = 0.3  # smaller than the norm of the gradients
SCALE = 256.0
_SEEN = {  # moment of a step -> series that equal the gradients at this moment, after division by the scale
    "scaled": ("backward_gradient", "gradient"),
    "unclipped": ("backward_gradient",),
    "clipped": ("gradient",),
}

Data = Callable[[int], tuple[torch.Tensor, torch.Tensor]]


def train_series(
    model: nn.Module, data: Data, *, fused: bool, look: Callable[[int, str], object] = lambda *_: None
) -> list[torch.Tensor]:
    """Train, and return the losses.

    fused: the optimizer unscales gradients itself, and gradients are not clipped.
    look: called with the step and the name of the moment, at several moments of a step.
    """
    optimizer: torch.optim.Optimizer = (  # DTensor supports the fused Adam only
        torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3, fused=True)
        if fused
        else torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    losses = []
    for step in range(STEPS):
        x, y = data(step)
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        scaler.scale(loss).backward()
        if fused:
            look(step, "scaled")
        else:
            scaler.unscale_(optimizer)
            look(step, "unclipped")
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            look(step, "clipped")
        scaler.step(optimizer)
        scaler.update()
        look(step, "stepped")
        losses.append(loss.detach())
    return losses


@cache
def series_twin(hidden: int, middle: int, *, fused: bool) -> dict[tuple[str, int], npt.NDArray[Any]]:
    """Train in one process; return gradients before and after clipping and updates, by (name, step)."""
    model = Net(hidden, middle)
    found: dict[tuple[str, int], npt.NDArray[Any]] = {}
    weights = {name: one.detach().numpy().copy() for name, one in model.named_parameters()}

    def look(step: int, moment: str) -> None:
        for name, parameter in model.named_parameters():
            gradient, weight = parameter.grad, parameter.detach().numpy()
            assert gradient is not None
            if moment == "stepped":
                found[f"weight_update/Net_{name}", step] = weight - weights[name]
                weights[name] = weight.copy()
            else:
                unscaled = gradient.numpy() / (SCALE if moment == "scaled" else 1.0)
                for series in _SEEN[moment]:
                    found[f"{series}/Net_{name}", step] = unscaled

    train_series(model, batch, fused=fused, look=look)
    return found
