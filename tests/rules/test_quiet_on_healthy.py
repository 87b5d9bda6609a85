"""Healthy trainings whose first or last steps look like faults: no rule fires."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tdcore.rules import run
from tdcore.rules.loading import all_rules

_NEVER = frozenset({"Overtraining"})  # it reports that a converged training continues


class Adapted(nn.Module):
    """A frozen network with a low-rank adapter whose second matrix starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(16, 32), nn.Linear(32, 4)
        self.requires_grad_(False)
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 32, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(torch.relu(self.base(inputs) + self.up(self.down(inputs)))))


def batches(steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(4, 16, generator=random)
    for _ in range(steps):
        labels = torch.randint(0, 4, (32,), generator=random)
        yield centres[labels] + 0.5 * torch.randn(32, 16, generator=random), labels


def perceptron(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, outputs))


def adapter(hook: Hook, steps: int) -> None:
    """A warm-up from a learning rate of 0."""
    model, loss = Adapted(), nn.CrossEntropyLoss()
    hook.register_module(model)
    hook.register_loss(loss)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / 10))
    for inputs, labels in batches(steps):
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()
        optimizer.step()
        warm_up.step()


def hinge(hook: Hook, steps: int) -> None:
    """A loss that reaches 0, with all gradients."""
    model, loss = perceptron(4), nn.MultiMarginLoss()
    hook.register_module(model)
    hook.register_loss(loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in batches(steps):
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()
        optimizer.step()


def triplets(hook: Hook, steps: int) -> None:
    model, loss = perceptron(8), nn.TripletMarginLoss()
    hook.register_module(model)
    hook.register_loss(loss)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for inputs, labels in batches(steps):
        classes = [inputs[labels == label] for label in range(4)]
        size = min(map(len, classes)) // 2
        anchor, positive, negative = (
            torch.cat([one[:size] for one in classes]),
            torch.cat([one[size : 2 * size] for one in classes]),
            torch.cat([one[:size] for one in [*classes[1:], classes[0]]]),
        )
        optimizer.zero_grad()
        loss(model(anchor), model(positive), model(negative)).backward()
        optimizer.step()


def pictures(hook: Hook, steps: int) -> None:
    """An autoencoder that removes noise from pictures with values in [0, 1]."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    loss = nn.MSELoss()
    hook.register_module(model)
    hook.register_loss(loss)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        images = torch.rand(8, 1, 12, 12)
        optimizer.zero_grad()
        loss(model(images + 0.3 * torch.randn_like(images)), images).backward()
        optimizer.step()


@pytest.mark.parametrize("training", [adapter, hinge, triplets, pictures])
def test_no_rule_fires(training: object, tmp_path: Path) -> None:
    torch.manual_seed(0)
    every = all_rules()
    hook = Hook(tmp_path, rules=every, ring=td.RingConfig(ring_bytes=1 << 26), flusher="thread")
    try:
        training(hook, 80)  # type: ignore[operator]
    finally:
        hook.close()
    report = run(tmp_path, every, write_findings=False)
    assert [repr(finding) for finding in report.findings if finding.rule not in _NEVER] == []
