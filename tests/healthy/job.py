"""Job: a small training as a value, and the loop that plays all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tdcore.hooks.pytorch import Hook

__all__ = ["Data", "Job", "train"]

Scheduler = Any  # from torch.optim.lr_scheduler, whose base class is private in older versions


@dataclass(frozen=True, kw_only=True)
class Data:
    """Inputs and targets, one row per sample."""

    inputs: Tensor
    targets: Tensor

    def batches(self, size: int, generator: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of all rows, shuffled if there is a generator, without an incomplete last batch."""
        count = len(self.inputs)
        order = torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
        for start in range(0, max(1, count - size // 2), size):
            rows = order[start : start + size]
            yield self.inputs[rows], self.targets[rows]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training.

    classes: whether targets are classes; then labels and predictions are recorded, too. limit: upper limit of
    the last loss on held-out data (or else on training data); a training above this limit is not a healthy
    one.
    """

    model: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    data: Data
    held_out: Data | None = None
    batch: int = 32
    epochs: int = 8
    classes: bool = False
    limit: float
    clip: float | None = None
    scheduler: Scheduler | None = None
    autocast: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)


def train(job: Job, hook: Hook) -> float:
    """Train with `hook` attached; return the last mean loss."""
    hook.register_module(job.model)
    hook.register_loss(job.loss)
    shuffle = torch.Generator().manual_seed(1)
    last = float("inf")
    for _ in range(job.epochs):
        job.model.train()
        losses = [_step(job, hook, *batch) for batch in job.data.batches(job.batch, shuffle)]
        last = sum(losses) / len(losses)
        if job.held_out is not None:
            last = _evaluate(job, hook, job.held_out)
    return last


def _step(job: Job, hook: Hook, inputs: Tensor, targets: Tensor) -> float:
    with job.autocast():
        outputs = job.model(inputs)
        loss = job.loss(outputs, targets)
    if job.classes:
        _record(hook, outputs, targets)
    job.optimizer.zero_grad()
    loss.backward()
    if job.clip is not None:
        torch.nn.utils.clip_grad_norm_(job.model.parameters(), job.clip)
    job.optimizer.step()
    if job.scheduler is not None:
        job.scheduler.step()
    return float(loss.detach())


def _evaluate(job: Job, hook: Hook, data: Data) -> float:
    job.model.eval()
    losses: list[float] = []
    with torch.no_grad(), job.autocast():
        for inputs, targets in data.batches(job.batch, None):
            outputs = job.model(inputs)
            losses.append(float(job.loss(outputs, targets)))
            if job.classes:
                _record(hook, outputs, targets)
    return sum(losses) / len(losses)


def _record(hook: Hook, outputs: Tensor, targets: Tensor) -> None:
    hook.save_tensor("labels", targets, "labels")
    hook.save_tensor("predictions", outputs.detach().float().argmax(-1), "predictions")
