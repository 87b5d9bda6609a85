"""A full ring or arena of a device: the behaviour of each policy, and every tensor counted once."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch

from tests.gpu.conftest import MakeTap, same_bits


def flood(device: torch.device, count: int = 60) -> list[torch.Tensor]:
    """Capture tensors of 256 KiB, each filled with its number."""
    return [torch.full((1 << 16,), float(i)).to(device) for i in range(count)]


@pytest.mark.parametrize("policy", ["drop", "degrade"])
def test_what_a_full_ring_does_not_take_is_counted_once(
    make_tap: MakeTap, device: torch.device, policy: str
) -> None:
    tap = make_tap(when_full=policy, device_ring_bytes=1 << 22, device_arena_bytes=1 << 20)
    tensors = flood(device)
    left_out = sum(tap.capture([tensor], step=step) for step, tensor in enumerate(tensors))
    tap.session.close()
    assert tap.session.counters().dropped_tensors == left_out
    parts: dict[int, int] = {}  # step -> number of parts that are missing
    for row in tap.trial.rows("^t0$").to_pylist():
        parts[row["step"]] = parts.get(row["step"], row["parts"]) - bool(row["nbytes"])
    kept = [step for step, missing in parts.items() if missing == 0]
    assert len(kept) == len(tensors) - left_out
    for step in kept:
        assert same_bits(tensors[step], tap.value("t0", step))


def test_degraded_tensors_keep_their_statistics(make_tap: MakeTap, device: torch.device) -> None:
    tap = make_tap(when_full="degrade", device_ring_bytes=1 << 22, device_arena_bytes=1 << 20)
    tensors = flood(device)
    for step, tensor in enumerate(tensors):
        tap.capture([tensor], step=step)
    rows = tap.trial.rows("^t0$").to_pylist()
    for row in rows:
        if row["max"] is not None:
            assert row["max"] == row["step"]


def test_a_training_that_may_wait_loses_nothing(make_tap: MakeTap, device: torch.device) -> None:
    tap = make_tap(
        when_full="block",
        block_timeout=timedelta(seconds=60),
        device_ring_bytes=1 << 22,
        device_arena_bytes=1 << 20,
    )
    tensors = flood(device)
    for step, tensor in enumerate(tensors):
        assert tap.capture([tensor], step=step) == 0
    for step, tensor in enumerate(tensors):
        assert same_bits(tensor, tap.value("t0", step))
    assert tap.drops() == {}


def test_a_list_larger_than_the_ring_arrives_whole_when_the_training_may_wait(
    make_tap: MakeTap, device: torch.device
) -> None:
    tap = make_tap(
        when_full="block",
        block_timeout=timedelta(seconds=60),
        device_ring_bytes=1 << 22,
        device_arena_bytes=1 << 20,
    )
    tensors = flood(device, 24)
    assert tap.capture(tensors) == 0
    for i, tensor in enumerate(tensors):
        assert same_bits(tensor, tap.value(f"t{i}"))
