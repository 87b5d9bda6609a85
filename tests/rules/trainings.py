"""Small real trainings that tests of rules record and judge: PyTorch on the CPU, one second each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tdcore.rules.base import Finding, Rule, Verdict
from tdcore.rules.engine import Engine
from tdcore.rules.run_source import RunSource

FEATURES, CLASSES, BATCH = 16, 4, 32


def blobs(steps: int, *, seed: int = 0, batch: int = BATCH) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of points around one centre per class; a small network learns them in ten steps."""
    random = torch.Generator().manual_seed(seed)
    centres = 2.0 * torch.randn(CLASSES, FEATURES, generator=random)
    labels = torch.randint(0, CLASSES, (steps, batch), generator=random)
    noise = torch.randn(steps, batch, FEATURES, generator=random)
    return [(centres[each] + part, each) for each, part in zip(labels, noise, strict=True)]


def network(
    activation: Callable[[], nn.Module] = nn.ReLU, *, depth: int = 2, width: int = 32
) -> nn.Sequential:
    """Return a stack of Linear layers for `blobs`, with the same weights at each call."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for index in range(depth):
        layers += [nn.Linear(width if index else FEATURES, width), activation()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def train(
    place: Path,
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    collections: Iterable[str] = (),
    regex: Iterable[str] = (),
    every: int = 1,
    values: bool = False,
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.SGD(
        parameters, lr=0.1
    ),
    criterion: nn.Module | None = None,
    after_step: Callable[[int, nn.Module], None] = lambda step, model: None,
) -> Path:
    """Train on the batches with a hook; return the path of the run.

    collections, regex: tensors that are captured in addition to losses. values: captures values, not only
    statistics. after_step: called after each step of the optimizer; it changes the model to plant the fault.
    """
    loss = criterion or nn.CrossEntropyLoss()
    stepper = optimizer(model.parameters())
    hook = Hook(
        place,
        save_config=td.SaveConfig(save_interval=every),
        reduction_config=td.ReductionConfig(save_raw_tensor=values),
        include_collections=list(collections),
        include_regex=list(regex) or None,
        ring=td.RingConfig(ring_bytes=1 << 24),
        flusher="thread",
    )
    hook.register_module(model)
    hook.register_loss(loss)
    try:
        for step, (inputs, labels) in enumerate(batches):
            stepper.zero_grad()
            loss(model(inputs), labels).backward()
            stepper.step()
            after_step(step, model)
    finally:
        hook.close()
    return place


def judge_run(rule: Rule, place: Path) -> tuple[list[Finding], Verdict]:
    """Return all findings of a rule over a finished run, and its verdict."""
    engine = Engine(RunSource(place, attempt="all"), [rule])
    found = engine.step()
    (verdict,) = engine.verdicts(finished=True)
    return found, verdict
