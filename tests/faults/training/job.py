"""Job: one training as a value that a fault can change in one place, and the loop that plays it.

Loop: a training with its own loop, in which no fault is planted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Batch", "Job", "Loop", "Optimizers", "adam", "learns", "sgd", "train"]

Batch = tuple[Any, Any]  # inputs (a tensor, or a tuple of tensors) and targets
Optimizers = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Event = Callable[["Job", int], None]


@dataclass(kw_only=True)
class Job:
    """A training. Faults change its members before it begins, or add events to it.

    batch: returns the batch of a step. held_out: batches of the validation. loss: called with outputs and
    targets. optimizer: makes the optimizer for given parameters. rate: factor of the learning rate by step.
    trained: the parameters that the optimizer gets, all by default. Events (the members whose names begin
    with before_, after_ or in_) are called at these places of a step, with the job and the number of the
    step. gain: the fraction by which the loss falls without a fault.
    """

    model: nn.Module
    loss: nn.Module
    batch: Callable[[int], Batch]
    held_out: list[Batch] = field(default_factory=list)
    optimizer: Optimizers
    steps: int = 240
    rate: Callable[[int], float] = lambda step: 1.0
    trained: Callable[[nn.Module], list[nn.Parameter]] = lambda model: list(model.parameters())
    clip: float | None = None
    clears: bool = True
    accumulates: int = 1
    validates_every: int = 40
    before_forward: list[Event] = field(default_factory=list)
    before_backward: list[Event] = field(default_factory=list)
    after_backward: list[Event] = field(default_factory=list)
    after_update: list[Event] = field(default_factory=list)
    in_validation: list[Event] = field(default_factory=list)
    autocast: bool = False  # forward and loss in bfloat16 where torch does so
    gain: float = 0.3
    classes: bool = False  # targets are classes: labels and predictions are recorded
    current: torch.optim.Optimizer | None = None


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A training that is not a sequence of batches for one model and one optimizer.

    play: trains, with a hook or None; returns its measure for each step. gain: the fraction by which it
    falls.
    """

    play: Callable[[Any], list[float]]
    gain: float


def learns(job: Job | Loop, losses: Sequence[float]) -> bool:
    """Return whether the mean of the last steps is below the mean of the first steps by the job's gain."""
    first, last = (sum(some) / len(some) for some in (losses[:_SOME], losses[-_SOME:]))
    return last < first - job.gain * abs(first)


def adam(rate: float, **options: Any) -> Optimizers:
    """Return a factory of Adam, for Job.optimizer."""
    return lambda parameters: torch.optim.Adam(parameters, lr=rate, **options)


def sgd(rate: float, **options: Any) -> Optimizers:
    """Return a factory of SGD, for Job.optimizer."""
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, **options)


def train(job: Job | Loop, hook: Any = None) -> list[float]:
    """Play the training; return the loss of each step. Ends early if losses are not finite for many steps."""
    if isinstance(job, Loop):
        return job.play(hook)
    if hook is not None:
        hook.register_module(job.model)
        hook.register_loss(job.loss)
    optimizer = job.current = job.optimizer(job.trained(job.model))
    rates = [group["lr"] for group in optimizer.param_groups]
    losses: list[float] = []
    for step in range(job.steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * job.rate(step)
        losses.append(_step(job, optimizer, step, hook))
        if job.held_out and step % job.validates_every == job.validates_every - 1:
            _validate(job, step, hook)
        if sum(not math.isfinite(one) for one in losses) > _NOT_FINITE:
            break
    return losses


def _step(job: Job, optimizer: torch.optim.Optimizer, step: int, hook: Any) -> float:
    job.model.train()
    _tell(job.before_forward, job, step)
    inputs, targets = job.batch(step)
    with torch.autocast("cpu", torch.bfloat16, enabled=job.autocast):
        outputs = _call(job.model, inputs)
        loss = job.loss(outputs, targets)
    _tell(job.before_backward, job, step)
    (loss / job.accumulates).backward()
    _record(job, hook, outputs, targets)
    _tell(job.after_backward, job, step)
    if job.clip is not None:
        torch.nn.utils.clip_grad_norm_(job.model.parameters(), job.clip)
    if (step + 1) % job.accumulates == 0:
        optimizer.step()
        _tell(job.after_update, job, step)
        if job.clears:
            optimizer.zero_grad()
    return float(loss.detach())


def _validate(job: Job, step: int, hook: Any) -> None:
    job.model.eval()
    with torch.no_grad():
        for inputs, targets in job.held_out:
            outputs = _call(job.model, inputs)
            job.loss(outputs, targets)
            _record(job, hook, outputs, targets)
    _tell(job.in_validation, job, step)


def _call(model: nn.Module, inputs: Any) -> Any:
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _record(job: Job, hook: Any, outputs: Any, targets: Tensor) -> None:
    if hook is None or not job.classes or not isinstance(outputs, Tensor):
        return
    hook.save_tensor("labels", targets, "labels")
    hook.save_tensor("predictions", outputs.detach().float().argmax(-1), "predictions")


def _tell(events: list[Event], job: Job, step: int) -> None:
    for event in events:
        event(job, step)


_NOT_FINITE = 20
_SOME = 10  # number of steps whose losses are averaged
