"""Hook.flush(): everything captured so far can be read, while the training goes on."""

from __future__ import annotations

import logging
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
import torch

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tests.trainers.checks import flushers_of

from .models import Net


def some_steps(model: Net, count: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("flusher", ["process", "thread"])
def test_a_trial_made_after_flush_has_every_step(tmp_path: Path, flusher: str) -> None:
    model = Net()
    hook = td.watch(model, tmp_path / "run", save_interval=1, flusher=flusher)
    for count in (3, 6):
        some_steps(model, 3)
        hook.save_scalar("count", count)
        assert hook.flush()
        trial = td.create_trial(tmp_path / "run")
        assert trial.tensor("gradient/Net_fc1.weight").steps() == list(range(count))
        assert trial.tensor("scalar/count").value(count - 1) == count
    hook.close()


def test_flush_with_a_stopped_flusher_returns_false_and_says_what_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Net()
    hook = td.watch(model, tmp_path / "run", save_interval=1)
    (flusher,) = flushers_of(tmp_path / "run")
    os.kill(flusher.pid, signal.SIGSTOP)
    try:
        some_steps(model, 2)
        with caplog.at_level(logging.WARNING, logger="tdcore"):
            assert not hook.flush(timedelta(seconds=0.05))
        assert any("flush() waited" in record.getMessage() for record in caplog.records)
    finally:
        os.kill(flusher.pid, signal.SIGCONT)
    assert hook.flush()
    hook.close()


def test_flush_where_nothing_is_written_returns_at_once(tmp_path: Path) -> None:
    dry = Hook(tmp_path / "dry", dry_run=True)
    assert dry.flush()
    hook = Hook(tmp_path / "run")
    hook.close()
    assert hook.flush()
    assert not (tmp_path / "dry").exists()
