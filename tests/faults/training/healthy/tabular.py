"""Healthy trainings on rows of numbers, and with rare optimizers and losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.faults.training.architectures import Mlp, job_of
from tests.faults.training.data import blobs, tables
from tests.faults.training.healthy.parts import (
    Make,
    Probe,
    SumOfLosses,
    WithoutClass,
    looped,
    one_cycle,
    warm_up_and_cosine,
)
from tests.faults.training.job import Job, adam, sgd

__all__ = ["TABULAR"]


def logistic_regression(generator: torch.Generator) -> Job:
    inputs, targets = blobs(1600, 3, 10, generator)
    loss = nn.CrossEntropyLoss()
    return job_of(nn.Linear(10, 3), loss, inputs, targets, generator, optimizer=sgd(0.1), classes=True)


def linear_regression(generator: torch.Generator) -> Job:
    inputs = torch.randn(1200, 8, generator=generator)
    targets = inputs @ torch.randn(8, 1, generator=generator) + 3.0
    targets = targets + 0.5 * torch.randn(1200, 1, generator=generator)
    return job_of(nn.Linear(8, 1), nn.MSELoss(), inputs, targets, generator, optimizer=sgd(0.02), steps=200)


def wide_with_dropout(generator: torch.Generator) -> Job:
    inputs, targets = blobs(1600, 5, 20, generator)
    model = nn.Sequential(nn.Linear(20, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 5))
    loss = nn.CrossEntropyLoss()
    return job_of(model, loss, inputs, targets, generator, optimizer=adam(1e-3), steps=200, classes=True)


def tiny(generator: torch.Generator) -> Job:
    """Eight units learn in which quadrants the product of two numbers is positive."""
    inputs = 3 * torch.rand(1600, 2, generator=generator) - 1.5
    wanted = (inputs[:, :1] * inputs[:, 1:] > 0).float()
    model, loss = Mlp([2, 8, 1], nn.Tanh), nn.BCEWithLogitsLoss()
    return job_of(model, loss, inputs, wanted, generator, optimizer=adam(3e-2), steps=300)


def _one_in_nine(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs, targets = blobs(4000, 2, 16, generator)
    rare, often = (targets == 1).nonzero()[:, 0], (targets == 0).nonzero()[:, 0]
    rows = torch.cat([often[:1440], rare[:160]])
    rows = rows[torch.randperm(len(rows), generator=generator)]
    return inputs[rows], targets[rows]


def rare_class_with_weight(generator: torch.Generator) -> Job:
    inputs, targets = _one_in_nine(generator)
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([9.0]))
    wanted = targets[:, None].float()
    return job_of(Mlp([16, 32, 1]), loss, inputs, wanted, generator, optimizer=adam(3e-3), size=64)


def rare_class_drawn_often(generator: torch.Generator) -> Job:
    inputs, targets = _one_in_nine(generator)
    weights = torch.where(targets == 1, 9.0, 1.0)
    rows = torch.multinomial(weights, 3000, replacement=True, generator=generator)
    loss = nn.CrossEntropyLoss()
    return job_of(
        Mlp([16, 32, 2]), loss, inputs[rows], targets[rows], generator, optimizer=adam(3e-3), classes=True
    )


def noisy_labels(generator: torch.Generator) -> Job:
    inputs, targets = blobs(2400, 4, 16, generator)
    wrong = torch.rand(2400, generator=generator) < 0.2
    targets = torch.where(wrong, torch.randint(0, 4, (2400,), generator=generator), targets)
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = sgd(0.05, momentum=0.9, weight_decay=1e-3)
    model = Mlp([16, 48, 4])
    return job_of(model, loss, inputs, targets, generator, optimizer=optimizer, classes=True, gain=0.1)


def hinge(generator: torch.Generator) -> Job:
    inputs, targets = blobs(1600, 3, 12, generator)
    loss = nn.MultiMarginLoss()
    return job_of(Mlp([12, 48, 3]), loss, inputs, targets, generator, optimizer=adam(3e-3), classes=True)


def support_vectors(generator: torch.Generator) -> Job:
    """A linear model with the hinge loss on two well separated classes: the loss reaches 0."""
    inputs = torch.randn(1200, 6, generator=generator)
    signs = torch.randint(0, 2, (1200, 1), generator=generator).float() * 2 - 1
    inputs[:, :1] += 4 * signs
    loss = WithoutClass(lambda outputs, targets: (1 - outputs * targets).clamp(min=0).mean())
    return job_of(
        nn.Linear(6, 1), loss, inputs, signs, generator, optimizer=sgd(0.05, weight_decay=1e-3), steps=160
    )


def counts(generator: torch.Generator) -> Job:
    inputs, level = tables(1600, 8, generator)
    targets = torch.poisson((0.6 * level + 1).exp(), generator=generator)
    loss = nn.PoissonNLLLoss()
    return job_of(Mlp([8, 48, 1]), loss, inputs, targets, generator, optimizer=adam(5e-3), gain=0.1)


def quantiles(generator: torch.Generator) -> Job:
    inputs, targets = tables(1600, 8, generator)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def pinball(outputs: Tensor, wanted: Tensor) -> Tensor:
        error = wanted - outputs
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    return job_of(
        Mlp([8, 64, 64, 3]), WithoutClass(pinball), inputs, targets, generator, optimizer=adam(3e-3)
    )


class Shared(nn.Module):
    """Two outputs from shared features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.kind, self.level = nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        return self.kind(x), self.level(x)


def multi_task(generator: torch.Generator) -> Job:
    inputs, level = tables(1600, 12, generator)
    kind = torch.bucketize(inputs[:, :3].sum(1, keepdim=True), torch.tensor([-1.0, 1.0]))
    loss = SumOfLosses(nn.CrossEntropyLoss(), nn.MSELoss(), weights=(1.0, 0.5))
    return job_of(Shared(), loss, inputs, torch.cat([kind, level], 1), generator, optimizer=adam(3e-3))


class Experts(nn.Module):
    """Four small networks, mixed by the probabilities of a fifth network."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(12, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        answers = torch.stack([expert(x) for expert in self.experts], 1)
        result: Tensor = (self.gate(x).softmax(1)[..., None] * answers).sum(1)
        return result


def experts(generator: torch.Generator) -> Job:
    inputs, targets = tables(1600, 12, generator)
    return job_of(Experts(), nn.MSELoss(), inputs, targets, generator, optimizer=adam(8e-3))


def with_uncertainty(generator: torch.Generator) -> Job:
    """The negative log-likelihood of a normal distribution, which falls below zero."""
    inputs, targets = tables(1600, 8, generator)

    def likelihood(outputs: Tensor, wanted: Tensor) -> Tensor:
        mean, spread = outputs.chunk(2, 1)
        return functional.gaussian_nll_loss(mean, wanted, spread.exp())

    loss = WithoutClass(likelihood)
    return job_of(Mlp([8, 64, 64, 2], nn.SiLU), loss, inputs, 0.3 * targets, generator, optimizer=adam(4e-3))


def self_normalising(generator: torch.Generator) -> Job:
    inputs, targets = blobs(1600, 4, 16, generator)
    layers: list[nn.Module] = []
    for before, width in ((16, 48), (48, 48), (48, 48)):
        layers += [nn.Linear(before, width), nn.SELU(), nn.AlphaDropout(0.1)]
        nn.init.normal_(layers[-3].weight, std=before**-0.5)  # type: ignore[arg-type]
    model = nn.Sequential(*layers, nn.Linear(48, 4))
    loss = nn.CrossEntropyLoss()
    return job_of(model, loss, inputs, targets, generator, optimizer=sgd(0.03, momentum=0.9), classes=True)


def accumulated(generator: torch.Generator) -> Job:
    inputs, targets = blobs(1600, 4, 16, generator)
    loss = nn.CrossEntropyLoss()
    return job_of(
        Mlp([16, 64, 4]),
        loss,
        inputs,
        targets,
        generator,
        optimizer=adam(5e-3),
        accumulates=4,
        size=8,
        steps=480,
        classes=True,
    )


class Categories(nn.Module):
    """Numbers concatenated with embeddings of three categories."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(12, 6) for _ in range(3))
        self.norm, self.body = nn.BatchNorm1d(6), Mlp([24, 48, 1])

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        vectors = [table(ids[:, at]) for at, table in enumerate(self.tables)]
        result: Tensor = self.body(torch.cat([*vectors, self.norm(numbers)], 1))
        return result


def categories(generator: torch.Generator) -> Job:
    ids = torch.randint(0, 12, (2000, 3), generator=generator)
    numbers = 50 * torch.rand(2000, 6, generator=generator)
    effect = torch.randn(3, 12, generator=generator)
    targets = effect[torch.arange(3)[None], ids].sum(1, keepdim=True) + numbers[:, :1] / 25
    inputs = (ids, numbers)
    return job_of(Categories(), nn.MSELoss(), inputs, targets, generator, optimizer=adam(5e-3))


def cyclic_rate(generator: torch.Generator) -> Job:
    inputs, targets = tables(1600, 12, generator)
    rate = lambda step: 0.1 + 0.9 * abs((step / 40) % 2 - 1)  # noqa: E731
    optimizer = lambda held: torch.optim.NAdam(held, lr=5e-3)  # noqa: E731
    return job_of(
        Mlp([12, 64, 64, 1]), nn.SmoothL1Loss(), inputs, targets, generator, optimizer=optimizer, rate=rate
    )


def many_labels(generator: torch.Generator) -> Job:
    inputs = torch.randn(1600, 16, generator=generator)
    targets = (inputs @ torch.randn(16, 6, generator=generator) > 2).float()
    loss, rate = nn.MultiLabelSoftMarginLoss(), one_cycle(240)
    return job_of(Mlp([16, 64, 6]), loss, inputs, targets, generator, optimizer=adam(1e-2), rate=rate)


def decoupled_decay(generator: torch.Generator) -> Job:
    inputs, targets = tables(1600, 12, generator)
    optimizer = lambda held: torch.optim.AdamW(held, lr=3e-3, weight_decay=0.3, amsgrad=True)  # noqa: E731
    model = nn.Sequential(
        nn.Linear(12, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()
    )
    model.append(nn.Linear(64, 1))
    rate = warm_up_and_cosine(20, 240)
    return job_of(model, nn.MSELoss(), inputs, targets, generator, optimizer=optimizer, rate=rate)


def batch_of_everything(generator: torch.Generator, probe: Probe) -> list[float]:
    """L-BFGS on all rows at once, which evaluates its closure several times per step."""
    inputs, targets = tables(400, 6, generator)
    model, loss = Mlp([6, 24, 1], nn.Tanh), nn.MSELoss()
    probe.watch(model, losses=(loss,))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        found: Tensor = loss(model(inputs), targets)
        found.backward()
        return found

    return [float(optimizer.step(closure)) for _ in range(80)]


def equation(generator: torch.Generator, probe: Probe) -> list[float]:
    """A network that solves y' = -2 y, y(0) = 1: its loss contains a gradient of its own output."""
    model = Mlp([1, 32, 32, 1], nn.Tanh)
    probe.watch(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(220):
        time = torch.rand(48, 1, generator=generator).requires_grad_()
        value = model(time)
        slope = torch.autograd.grad(value.sum(), time, create_graph=True)[0]
        start = model(torch.zeros(1, 1)) - 1
        loss = (slope + 2 * value).square().mean() + 5 * start.square().mean()
        probe.loss("loss", loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def perturbed_first(generator: torch.Generator, probe: Probe) -> list[float]:
    """Sharpness-aware: two backward passes per step, the second at weights that were moved uphill."""
    inputs, targets = blobs(1200, 4, 16, generator)
    model, loss = Mlp([16, 48, 4]), nn.CrossEntropyLoss()
    probe.watch(model, losses=(loss,))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    held, losses = list(model.parameters()), []
    for _ in range(160):
        rows = torch.randint(0, 1200, (32,), generator=generator)
        first = loss(model(inputs[rows]), targets[rows])
        first.backward()
        size = math.sqrt(sum(float(one.grad.square().sum()) for one in held if one.grad is not None))
        moves = [0.05 / (size + 1e-9) * one.grad for one in held if one.grad is not None]
        with torch.no_grad():
            for one, move in zip(held, moves, strict=True):
                one.add_(move)
        optimizer.zero_grad()
        loss(model(inputs[rows]), targets[rows]).backward()
        with torch.no_grad():
            for one, move in zip(held, moves, strict=True):
                one.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(first.detach()))
    return losses


TABULAR: Mapping[str, Make] = {
    "logistic regression": logistic_regression,
    "linear regression": linear_regression,
    "wide with dropout": wide_with_dropout,
    "tiny": tiny,
    "rare class with a weight": rare_class_with_weight,
    "rare class drawn often": rare_class_drawn_often,
    "noisy labels": noisy_labels,
    "hinge": hinge,
    "support vectors": support_vectors,
    "counts": counts,
    "quantiles": quantiles,
    "multi-task": multi_task,
    "experts": experts,
    "with uncertainty": with_uncertainty,
    "self-normalising": self_normalising,
    "accumulated gradients": accumulated,
    "categories": categories,
    "cyclic rate, NAdam": cyclic_rate,
    "many labels": many_labels,
    "decoupled decay": decoupled_decay,
    "L-BFGS": looped(batch_of_everything, gain=0.5),
    "equation": looped(equation, gain=0.9),
    "sharpness-aware": looped(perturbed_first, gain=0.3),
}
