"""Shared memory: a training allocates what its plan needs before the first step, and survives without it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tdcore as td
from tdcore import _core
from tdcore.hooks.pytorch import Hook
from tdcore.session import ring_config, ring_sizes
from tests.hooks.conftest import MakeHook
from tests.waiting import wait_until

MIB = 1 << 20


def ring_memory() -> int:
    """Return the number of bytes that the rings of this process hold, as counted by the kernel."""
    held = 0
    for fd in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{fd}"
        if os.path.lexists(path) and "memfd:tdcore-ring" in os.readlink(path):
            held += os.stat(path).st_blocks * 512
    return held


def three_layers(width: int = 50) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(20, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, 2),
    )


def train(model: torch.nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 20)).square().mean().backward()
        optimizer.step()


def test_statistics_of_a_small_network_take_little_shared_memory(tmp_path: Path) -> None:
    model = three_layers()
    before = ring_memory()
    with td.watch(model, tmp_path / "run"):
        train(model, 50)
        assert ring_memory() - before < 4 * MIB


def test_memory_for_values_is_there_before_the_first_step(tmp_path: Path) -> None:
    model = three_layers(width=1000)  # 4 MB of parameters
    before = ring_memory()
    with Hook(tmp_path / "run", include_collections=["weights", "gradients"]) as hook:
        hook.register_module(model)
        wait_until(lambda: ring_memory() - before > 16 * MIB)
        assert ring_memory() - before < 20 * MIB
        train(model, 1)
        assert ring_memory() - before < 20 * MIB


@pytest.mark.parametrize(("available", "expected"), [(1 << 40, "8 MiB"), (40 * MIB, "2 MiB")])
def test_the_ring_grows_for_a_large_model_if_the_machine_has_the_memory(
    available: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_config, "LEAST_RING", MIB)
    monkeypatch.setattr(ring_sizes, "LEAST_RING", MIB)
    _core._pretend_available_memory(available)
    try:
        with Hook(tmp_path / "run", include_collections=["weights"], flusher="thread") as hook:
            model = three_layers(width=1000)  # 4 MB of parameters
            hook.register_module(model)
            train(model, 1)
    finally:
        _core._pretend_available_memory(None)
    (note,) = td.create_trial(tmp_path / "run").notes()["ring_sizes"]
    assert note.startswith(f"ring of up to {expected} (the default is 1 MiB): a saved step has 3.899 MiB")


@pytest.fixture
def no_memory() -> Iterator[None]:
    """Pretend that no memory is available beyond the rings' initial memory."""
    _core._pretend_available_memory(10 * MIB)
    yield
    _core._pretend_available_memory(None)


def test_a_ring_that_cannot_grow_is_said_and_what_it_drops_is_counted(
    make_hook: MakeHook, caplog: pytest.LogCaptureFixture, no_memory: None
) -> None:
    hook = make_hook(ring=td.RingConfig(ring_bytes=8 * MIB, slots=256, names_bytes=1 << 20, when_full="drop"))
    _core._pretend_available_memory(MIB)
    with caplog.at_level(logging.WARNING, "tdcore"):
        hook.save_tensor("large", torch.ones(3 << 20))
        report = hook.close()
    assert report is not None
    assert report.counters.drops["ring_full"].tensors == 1
    (message,) = [each.getMessage() for each in caplog.records if "cannot grow" in each.getMessage()]
    assert "bytes available" in message
