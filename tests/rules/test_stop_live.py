"""From a live training to its stop: hook, flusher, rules in another thread, stop action, and back."""

from __future__ import annotations

import re
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.actions import RequestStop
from tdcore.hooks.pytorch import Hook
from tdcore.rules import Report, VanishingGradient, run


def deep_sigmoid() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(10):
        layers += [nn.Linear(16, 16), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(16, 2))


def test_a_rule_that_fires_stops_the_training_that_it_watches(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, criterion = deep_sigmoid(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reports: list[Report] = []
    hook = Hook(
        tmp_path / "run",
        save_config=td.SaveConfig(save_interval=2),
        include_collections=["gradients", "losses"],
        ring=td.RingConfig(ring_bytes=1 << 22),
        flusher="thread",
    )
    hook.register_module(model)
    hook.register_loss(criterion)
    watcher = threading.Thread(
        target=lambda: reports.append(
            run(
                tmp_path / "run",
                [VanishingGradient()],
                live=True,
                until_end=True,
                actions=[RequestStop()],
                poll_interval=timedelta(seconds=0.05),
                timeout=timedelta(seconds=120),
            )
        )
    )
    watcher.start()
    deadline = time.monotonic() + 100
    with pytest.raises(td.StopTraining) as stop:  # noqa: PT012 -- it comes at some step
        while time.monotonic() < deadline:
            optimizer.zero_grad()
            criterion(model(torch.randn(8, 16)), torch.randint(0, 2, (8,))).backward()
            optimizer.step()
    hook.close()
    watcher.join(60)
    assert not watcher.is_alive()
    assert re.search(r"gradient/Sequential_\d+\.(weight|bias): mean \|gradient\|", stop.value.reason)
    (report,) = reports
    assert report.finished
    assert {"gradient/Sequential_0.weight", "gradient/Sequential_2.weight"} <= {
        f.tensor for f in report.findings
    }
