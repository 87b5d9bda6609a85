"""Trainings on handwritten digits: perceptrons and convolutions, each with a different recipe."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import sklearn.datasets
import torch
from torch import Tensor, nn

from tests.healthy.job import Data, Job

__all__ = ["DIGITS", "Residual", "digits"]


@cache
def digits(*, flat: bool) -> tuple[Data, Data]:
    """Return standardised training and held-out data, as rows of 64 values or images of one channel."""
    loaded = sklearn.datasets.load_digits()
    images = torch.tensor(loaded.images, dtype=torch.float32)
    images = (images - images.mean()) / images.std()
    inputs = images.flatten(1) if flat else images.unsqueeze(1)
    targets = torch.tensor(loaded.target)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    train, rest = order[:1400], order[1400:]
    return (
        Data(inputs=inputs[train], targets=targets[train]),
        Data(inputs=inputs[rest], targets=targets[rest]),
    )


def _job(model: nn.Module, optimizer: torch.optim.Optimizer, *, flat: bool = True, **settings: Any) -> Job:
    data, held_out = digits(flat=flat)
    defaults: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "classes": True, "limit": 0.5}
    return Job(model=model, optimizer=optimizer, data=data, held_out=held_out, **{**defaults, **settings})


class Convolutions(nn.Module):
    """Two convolutions and a linear layer; images of 8 x 8."""

    def __init__(self, act: type[nn.Module], norm: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8) if norm else nn.Identity(),
            act(),
            nn.Conv2d(8, 16, 3, padding=1, stride=2),
            nn.BatchNorm2d(16) if norm else nn.Identity(),
            act(),
        )
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(x).flatten(1))
        return result


class Residual(nn.Module):
    """Blocks with skip connections and layer normalisation."""

    def __init__(self, width: int = 64, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        result: Tensor = self.head(x)
        return result


def _perceptron(act: type[nn.Module], *, width: int = 64, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, width),
        act(),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        act(),
        nn.Dropout(dropout),
        nn.Linear(width, 10),
    )


def relu_sgd() -> Job:
    model = _perceptron(nn.ReLU)
    return _job(model, torch.optim.SGD(model.parameters(), lr=0.05))


def tanh_adam() -> Job:
    model = _perceptron(nn.Tanh)
    return _job(model, torch.optim.Adam(model.parameters(), lr=1e-3))


def sigmoid_adam() -> Job:
    model = nn.Sequential(nn.Linear(64, 48), nn.Sigmoid(), nn.Linear(48, 10))
    return _job(model, torch.optim.Adam(model.parameters(), lr=5e-3))


def batch_norm_momentum() -> Job:
    model = Convolutions(nn.ReLU, norm=True)
    return _job(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True), flat=False)


def gelu_adamw_one_cycle() -> Job:
    model = Convolutions(nn.GELU, norm=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps = 8 * 44
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps + 8)
    return _job(model, optimizer, flat=False, scheduler=schedule)


def dropout_weight_decay() -> Job:
    model = _perceptron(nn.ReLU, width=96, dropout=0.3)
    return _job(model, torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05), epochs=12)


def logistic_regression() -> Job:
    model = nn.Sequential(nn.Linear(64, 10))
    return _job(model, torch.optim.SGD(model.parameters(), lr=0.05))


def residual_clipped() -> Job:
    model = Residual()
    return _job(model, torch.optim.Adam(model.parameters(), lr=2e-3), clip=1.0, batch=64)


def bfloat16_autocast() -> Job:
    model = Convolutions(nn.ReLU, norm=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    return _job(model, optimizer, flat=False, autocast=autocast)


DIGITS = {
    "digits, ReLU perceptron, SGD": relu_sgd,
    "digits, tanh perceptron, Adam": tanh_adam,
    "digits, sigmoid, Adam": sigmoid_adam,
    "digits, convolutions and batch norm, momentum": batch_norm_momentum,
    "digits, GELU, AdamW, one cycle": gelu_adamw_one_cycle,
    "digits, dropout and weight decay": dropout_weight_decay,
    "digits, logistic regression": logistic_regression,
    "digits, residual, clipped gradients": residual_clipped,
    "digits, bfloat16 autocast": bfloat16_autocast,
}
