"""Small real trainings in epochs with validation, recorded for tests of rules about losses and labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook

Batches = list[tuple[torch.Tensor, torch.Tensor]]


def rings(number: int, *, seed: int = 0, batch: int = 32) -> Batches:
    """Return batches of points on two concentric rings: two classes without a linear separation."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (number, batch), generator=random)
    angle = 6.283 * torch.rand(number, batch, generator=random)
    radius = 1.0 + labels + 0.1 * torch.randn(number, batch, generator=random)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
    return list(zip(points, labels, strict=True))


def flipped(batches: Batches, share: float) -> Batches:
    """Return the same batches, with this many of their (two) labels exchanged."""
    random = torch.Generator().manual_seed(1)
    return [
        (points, (labels + (torch.rand(labels.shape, generator=random) < share)) % 2)
        for points, labels in batches
    ]


def perceptron(width: int = 32, *, classes: int = 2) -> nn.Sequential:
    """Return two layers for `rings`, with the same weights at each call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, classes))


def fit(
    place: Path,
    model: nn.Module,
    batches: Batches,
    validation: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
    *,
    epochs: int,
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.Adam(parameters, 0.01),
    labels: bool = False,
    collections: Sequence[str] = (),
    every: int = 1,
    before_step: Callable[[int, torch.optim.Optimizer], None] = lambda step, optimizer: None,
) -> Path:
    """Train for some epochs, each followed by a validation, with a hook; return the path of the run.

    labels: "labels" and "predictions" (scores) are saved, too. before_step: called before each step of the
    optimizer, to plant the fault.
    """
    criterion, stepper = nn.CrossEntropyLoss(), optimizer(model.parameters())
    hook = Hook(
        place,
        save_config=td.SaveConfig(save_interval=every),
        reduction_config=td.ReductionConfig(save_raw_tensor=True),
        include_collections=list(collections),
        ring=td.RingConfig(ring_bytes=1 << 24),
        flusher="thread",
    )
    hook.register_module(model)
    hook.register_loss(criterion)

    def forward(points: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        scores = model(points)
        if labels:
            hook.save_tensor("labels", truth, "labels")
            hook.save_tensor("predictions", scores.detach(), "predictions")
        return torch.as_tensor(criterion(scores, truth))

    step = 0
    try:
        for _ in range(epochs):
            model.train()
            for points, truth in batches:
                stepper.zero_grad()
                forward(points, truth).backward()
                before_step(step, stepper)
                stepper.step()
                step += 1
            model.eval()
            with torch.no_grad():
                for points, truth in validation:
                    forward(points, truth)
    finally:
        hook.close()
    return place
