"""A pretrained network: fine-tuned completely, and with a frozen body."""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import nn

from tests.healthy.digits import Residual, digits
from tests.healthy.job import Data, Job

__all__ = ["TRANSFER"]

_KNOWN = 6  # the network was trained on smaller digits first


@cache
def _trained() -> Residual:
    data, _ = digits(flat=True)
    known = data.targets < _KNOWN
    torch.manual_seed(3)
    model = Residual()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = nn.CrossEntropyLoss()
    part = Data(inputs=data.inputs[known], targets=data.targets[known])
    for _ in range(8):
        for inputs, targets in part.batches(32, torch.Generator().manual_seed(2)):
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
    return model


def _job(model: nn.Module, optimizer: torch.optim.Optimizer, limit: float) -> Job:
    data, held_out = digits(flat=True)
    return Job(
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        data=data,
        held_out=held_out,
        epochs=5,
        classes=True,
        limit=limit,
    )


def tuned() -> Job:
    model = copy.deepcopy(_trained())
    model.head = nn.Linear(64, 10)
    return _job(model, torch.optim.AdamW(model.parameters(), lr=5e-4), limit=0.4)


def frozen_body() -> Job:
    model = copy.deepcopy(_trained())
    model.head = nn.Linear(64, 10)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head"))
    return _job(model, torch.optim.Adam(model.head.parameters(), lr=3e-3), limit=0.8)


TRANSFER = {
    "digits, tuning a trained net": tuned,
    "digits, frozen body, new head": frozen_body,
}
