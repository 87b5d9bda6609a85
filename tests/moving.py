"""Shared parts of the tests of scripts in the style of smdebug: model, loop, configuration, run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdcore as td
import tdcore.smd as smd

SMALL_RING = td.RingConfig(ring_bytes=1 << 22, slots=1024, names_bytes=1 << 20)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.relu(self.fc(x))
        return y


def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **hook: str) -> Path:
    """Write the service's configuration to a file that the environment names; return the run's folder."""
    document = {
        "S3Path": "s3://bucket/prefix",
        "LocalPath": str(tmp_path / "run"),
        "HookParameters": {"save_interval": "1", **hook},
        "CollectionConfigurations": [{"CollectionName": "gradients"}, {"CollectionName": "weights"}],
    }
    path = tmp_path / "hook.json"
    path.write_text(json.dumps(document))
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(path))
    return tmp_path / "run"


def fit(hook: smd.Hook | None, model: nn.Module, criterion: nn.Module, steps: int = 3) -> None:
    """Train as many published scripts do: the hook may be None, each epoch registers the loss again."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if hook:
        hook.register_loss(criterion)
    model.train()
    if hook:
        hook.set_mode(smd.modes.TRAIN)
    for _ in range(steps):
        optimizer.zero_grad()
        criterion(model(torch.randn(5, 4)), torch.randint(0, 3, (5,))).backward()
        optimizer.step()
    model.eval()
    if hook:
        hook.set_mode(smd.modes.EVAL)
    with torch.no_grad():
        criterion(model(torch.randn(5, 4)), torch.randint(0, 3, (5,)))


def recorded(tmp_path: Path, **options: Any) -> smd.Trial:
    """Record a run of Net with gradients, weights and a scalar; open it as smdebug does."""
    hook = smd.Hook(
        tmp_path / "run",
        save_config=smd.SaveConfig(save_interval=1),
        include_collections=["gradients", "weights"],
        flusher="thread",
        ring=SMALL_RING,
        **options,
    )
    model = Net()
    hook.register_module(model)
    fit(hook, model, nn.CrossEntropyLoss())
    hook.save_scalar("accuracy", 0.5)
    hook.close()
    return smd.create_trial(str(tmp_path / "run"))
