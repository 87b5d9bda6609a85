"""Trainings on tables: classification and regression, few rows and many, with categories."""

from __future__ import annotations

from typing import Any

import numpy as np
import sklearn.datasets
import torch
from torch import Tensor, nn

from tests.healthy.job import Data, Job

__all__ = ["TABULAR"]


def _split(rows: Any, kind: torch.dtype) -> tuple[Data, Data]:
    """Shuffle, standardise inputs, and split into three quarters for training and a quarter held out."""
    inputs, targets = rows
    table = torch.tensor(np.asarray(inputs), dtype=torch.float32)
    table = (table - table.mean(0)) / table.std(0)
    wanted = torch.tensor(np.asarray(targets), dtype=kind)
    if kind.is_floating_point:
        wanted = ((wanted - wanted.mean()) / wanted.std()).unsqueeze(1)
    order = torch.randperm(len(wanted), generator=torch.Generator().manual_seed(0))
    cut = len(wanted) * 3 // 4
    train, rest = order[:cut], order[cut:]
    return Data(inputs=table[train], targets=wanted[train]), Data(inputs=table[rest], targets=wanted[rest])


def _perceptron(inputs: int, outputs: int, act: type[nn.Module], width: int = 32) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), act(), nn.Linear(width, width), act(), nn.Linear(width, outputs)
    )


def _classes(model: nn.Module, optimizer: torch.optim.Optimizer, table: Any, **settings: Any) -> Job:
    """Return a classification. table: inputs and targets."""
    data, held_out = _split(table, torch.int64)
    defaults: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "batch": 16, "limit": 0.3}
    chosen = {**defaults, **settings}
    return Job(model=model, optimizer=optimizer, data=data, held_out=held_out, classes=True, **chosen)


def _numbers(model: nn.Module, optimizer: torch.optim.Optimizer, table: Any, **settings: Any) -> Job:
    """Return a regression. table: inputs and targets."""
    data, held_out = _split(table, torch.float32)
    return Job(model=model, optimizer=optimizer, data=data, held_out=held_out, **settings)


def cancer() -> Job:
    model = _perceptron(30, 2, nn.ReLU)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3)
    return _classes(model, optimizer, sklearn.datasets.load_breast_cancer(return_X_y=True), epochs=10)


def wine() -> Job:
    model = _perceptron(13, 3, nn.Tanh, width=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    table = sklearn.datasets.load_wine(return_X_y=True)
    loss = nn.CrossEntropyLoss(label_smoothing=0.05)
    return _classes(model, optimizer, table, loss=loss, epochs=15, limit=0.5)


def moons() -> Job:
    model = _perceptron(2, 2, nn.ReLU, width=16)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    table = sklearn.datasets.make_moons(n_samples=1200, noise=0.15, random_state=0)
    return _classes(model, optimizer, table, batch=32, epochs=12)


def diabetes() -> Job:
    model = _perceptron(10, 1, nn.ReLU, width=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    table = sklearn.datasets.load_diabetes(return_X_y=True)
    return _numbers(model, optimizer, table, loss=nn.HuberLoss(), batch=32, epochs=15, limit=0.4)


def friedman() -> Job:
    model = _perceptron(10, 1, nn.SiLU, width=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    table = sklearn.datasets.make_friedman1(n_samples=2000, noise=0.5, random_state=0)
    return _numbers(model, optimizer, table, loss=nn.MSELoss(), batch=64, epochs=12, limit=0.3)


class Categories(nn.Module):
    """Three categories, each with an embedding, then a perceptron."""

    def __init__(self, sizes: tuple[int, ...], width: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        self.head = nn.Sequential(nn.Linear(width * len(sizes), 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        columns = [table(x[:, at]) for at, table in enumerate(self.tables)]
        result: Tensor = self.head(torch.cat(columns, dim=1))
        return result


def categories() -> Job:
    """A regression: the sum of effects of the categories, with noise."""
    random = np.random.default_rng(0)
    sizes = (12, 7, 30)
    rows = np.stack([random.integers(0, size, 3000) for size in sizes], axis=1)
    effects = [random.normal(size=size) for size in sizes]
    values = sum(effect[rows[:, at]] for at, effect in enumerate(effects)) + random.normal(0, 0.3, len(rows))
    inputs = torch.tensor(rows)
    targets = torch.tensor((values - values.mean()) / values.std(), dtype=torch.float32).unsqueeze(1)
    model = Categories(sizes)
    return Job(
        model=model,
        loss=nn.MSELoss(),
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        data=Data(inputs=inputs[:2400], targets=targets[:2400]),
        held_out=Data(inputs=inputs[2400:], targets=targets[2400:]),
        batch=64,
        epochs=8,
        limit=0.3,
    )


TABULAR = {
    "tumours, perceptron, Adam": cancer,
    "wine, tanh, label smoothing": wine,
    "diabetes, regression, Huber": diabetes,
    "Friedman's function, SiLU": friedman,
    "two moons, RMSprop": moons,
    "categories, embeddings": categories,
}
