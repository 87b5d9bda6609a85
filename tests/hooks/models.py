"""Small models for tests of hooks."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """Two layers, and a ReLU that writes into the output of the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.relu = nn.ReLU(inplace=True)
        self.fc2 = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc2(self.relu(self.fc1(x)))
        return y


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 1,
    criterion: nn.Module | None = None,
    batch: int = 5,
    features: int = 4,
) -> list[torch.Tensor]:
    """Train with a plain loop on random data; return the losses."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(torch.randn(batch, features))
        loss = criterion(output, torch.randint(0, 3, (batch,))) if criterion else output.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses
