"""Shared parts of healthy trainings: learning rate schedules, loss modules, small models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.faults.training.job import Job, Loop

__all__ = [
    "Blocks",
    "Make",
    "Probe",
    "SumOfLosses",
    "WithoutClass",
    "looped",
    "one_cycle",
    "pretrained",
    "warm_up_and_cosine",
    "warm_up_and_linear",
]

Make = Callable[[torch.Generator], Job | Loop]
Play = Callable[[torch.Generator, "Probe"], list[float]]


class Probe:
    """Wrapper of a hook that may be None. Registers modules, and records losses that have no module."""

    def __init__(self, hook: object | None) -> None:
        self._hook = hook

    def watch(self, *modules: nn.Module, losses: Sequence[nn.Module] = ()) -> None:
        """Register models and modules that compute losses."""
        for module in modules:
            self._call("register_module", module)
        for loss in losses:
            self._call("register_loss", loss)

    def loss(self, name: str, value: Tensor) -> None:
        """Record a loss that a function has computed."""
        self._call("record_tensor_value", name, value)

    def _call(self, method: str, *values: object) -> None:
        if self._hook is not None:
            getattr(self._hook, method)(*values)


def looped(play: Play, *, gain: float) -> Make:
    """Return a training with its own loop. gain: the fraction by which its measure must fall."""

    def make(generator: torch.Generator) -> Loop:
        return Loop(play=lambda hook: play(generator, Probe(hook)), gain=gain)

    return make


def warm_up_and_cosine(warm_up: int, steps: int) -> Callable[[int], float]:
    """Return the factor of the rate: rises from 1/warm_up to 1, then falls to almost 0 along a cosine."""

    def rate(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))

    return rate


def warm_up_and_linear(warm_up: int, steps: int) -> Callable[[int], float]:
    """Return the factor of the rate: rises from 0, at the first step, to 1, then falls linearly to 0."""
    return lambda step: min(step / warm_up, max(0.0, (steps - step) / (steps - warm_up)))


def one_cycle(steps: int, start: float = 0.04) -> Callable[[int], float]:
    """Return the factor of the rate: rises for a third of the steps, then falls to a hundredth of `start`."""
    top = steps // 3

    def rate(step: int) -> float:
        share = step / top if step < top else (step - top) / (steps - top)
        low, high = (start, 1.0) if step < top else (1.0, start / 100)
        return low + (high - low) * 0.5 * (1 - math.cos(math.pi * share))

    return rate


class Blocks(nn.Module):
    """Strided convolutions, each with a normalisation and an activation; pooling; a linear head."""

    def __init__(
        self,
        widths: Sequence[int],
        norm: Callable[[int], nn.Module],
        activation: Callable[[], nn.Module] = nn.ReLU,
        *,
        drop: float = 0.0,
        classes: int = 4,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in zip((1, *widths), widths, strict=False):
            layers += [nn.Conv2d(before, width, 3, stride=2, padding=1), norm(width), activation()]
        self.body = nn.Sequential(*layers)
        self.pool, self.drop = nn.AdaptiveMaxPool2d(1), nn.Dropout(drop)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.drop(self.pool(self.body(x)).flatten(1)))
        return result


class SumOfLosses(nn.Module):
    """A weighted sum of losses, one for each output and target."""

    def __init__(self, *losses: nn.Module, weights: Sequence[float]) -> None:
        super().__init__()
        self.parts, self.weights = nn.ModuleList(losses), tuple(weights)

    def forward(self, outputs: Sequence[Tensor], targets: Tensor) -> Tensor:
        wanted = (targets[:, 0].long(), targets[:, 1:])
        found = [part(one, to) for part, one, to in zip(self.parts, outputs, wanted, strict=True)]
        total: Tensor = sum((w * one for w, one in zip(self.weights, found, strict=True)), torch.zeros(()))
        return total


class WithoutClass(nn.Module):
    """A loss that is a function of outputs and targets."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.function(outputs, targets)


def pretrained(model: nn.Module, inputs: Tensor, targets: Tensor, *, steps: int, rate: float) -> None:
    """Train a classifier without a hook, as the training before the recorded one."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(steps):
        rows = torch.arange(step * 32, step * 32 + 32) % len(targets)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    optimizer.zero_grad()
