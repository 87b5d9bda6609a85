"""The training may change or free a captured tensor immediately, and never waits for the capture."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.gpu.conftest import BOTH, STATISTICS, VALUES, MakeTap, Tap, no_synchronisation, same_bits


def busy(stream: torch.cuda.Stream | None = None, rounds: int = 30) -> None:
    """Give a stream about ten milliseconds of work, so that the host is far ahead of the device."""
    with torch.cuda.stream(stream):
        square = torch.ones(4096, 4096, device="cuda")
        for _ in range(rounds):
            square = square @ square / 4096


@pytest.mark.parametrize("flags", [VALUES, STATISTICS, BOTH])
def test_a_tensor_overwritten_right_after_the_call_is_kept_as_it_was(tap: Tap, flags: int) -> None:
    tensor = torch.randn(1_000_000, device="cuda")
    before = tensor.cpu()
    busy()
    with no_synchronisation():
        assert tap.capture([tensor], flags) == 0
        tensor.fill_(7)
    if flags & VALUES:
        assert same_bits(before, tap.value("t0"))
    if flags & STATISTICS:
        assert tap.statistics("t0")["max"] == before.max().item()


def test_a_tensor_freed_right_after_the_call_is_kept_as_it_was(tap: Tap) -> None:
    expected = []
    for step in range(20):
        tensor = torch.randn(500_000, device="cuda")
        expected.append(tensor.cpu())
        address = tensor.data_ptr()
        busy(rounds=3)
        assert tap.capture([tensor], step=step) == 0
        del tensor
        other = torch.full((500_000,), -1.0, device="cuda")
        if step == 0:  # the test requires that the allocator returns the same memory again
            assert other.data_ptr() == address
        del other
    for step, values in enumerate(expected):
        assert same_bits(values, tap.value("t0", step))


def test_a_tensor_resized_right_after_the_call_is_kept_as_it_was(tap: Tap) -> None:
    tensor = torch.randn(100_000, device="cuda")
    before = tensor.cpu()
    busy()
    assert tap.capture([tensor]) == 0
    tensor.resize_(3_000_000)
    tensor.zero_()
    assert same_bits(before, tap.value("t0"))


def test_values_are_those_of_the_current_stream(tap: Tap) -> None:
    stream = torch.cuda.Stream()
    tensor = torch.zeros(1_000_000, device="cuda")
    torch.cuda.synchronize()
    for step in range(10):
        with torch.cuda.stream(stream):
            busy(stream, rounds=3)
            tensor.fill_(step)
            assert tap.capture([tensor], step=step) == 0
    for step in range(10):
        assert (tap.value("t0", step) == step).all()


def test_two_streams_that_hand_a_tensor_over_by_events_keep_their_order(tap: Tap) -> None:
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    tensor = torch.zeros(1_000_000, device="cuda")
    torch.cuda.synchronize()
    for step in range(40):
        mine, other = streams[step % 2], streams[1 - step % 2]
        with torch.cuda.stream(mine):
            busy(mine, rounds=1)
            tensor.fill_(step)
            assert tap.capture([tensor], step=step) == 0
        other.wait_event(mine.record_event())
    for step in range(40):
        value = tap.value("t0", step)
        assert value.min() == value.max() == step


def test_threads_on_streams_of_their_own_capture_beside_each_other(tap: Tap) -> None:
    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for step in range(30):
                tensor = torch.full((50_000,), 100.0 * number + step, device="cuda")
                assert tap.capture([tensor], step=step, prefix=f"thread{number}_") == 0
                tensor.fill_(-1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        for step in range(30):
            value = tap.value(f"thread{number}_0", step)
            assert value.min() == value.max() == 100 * number + step


def test_tensors_of_several_devices_in_one_call_arrive(make_tap: MakeTap) -> None:
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("needs two CUDA devices")
    tap = make_tap()
    for step in range(5):
        tensors = [torch.full((10_000 + i,), i + 10.0 * step, device=f"cuda:{i % count}") for i in range(6)]
        assert tap.capture(tensors, step=step) == 0
        for tensor in tensors:
            tensor.zero_()
    for step in range(5):
        for i in range(6):
            value = tap.value(f"t{i}", step)
            assert value.shape == (10_000 + i,)
            assert (value == i + 10 * step).all()


def test_a_capture_of_another_device_leaves_the_current_one_alone(tap: Tap) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    with torch.cuda.device(0):
        tensor = torch.ones(1000, device="cuda:1")
        assert tap.capture([tensor]) == 0
        assert torch.cuda.current_device() == 0
        assert torch.ones(1, device="cuda").device.index == 0
    assert same_bits(tensor, tap.value("t0"))


def test_after_the_first_capture_nothing_is_allocated_on_the_device(tap: Tap) -> None:
    tensors = [torch.randn(30_000, device="cuda") for _ in range(20)]
    for step in range(5):
        assert tap.capture(tensors, step=step) == 0
    torch.cuda.synchronize()

    def state() -> tuple[Any, ...]:
        free, _ = torch.cuda.mem_get_info()
        return free, torch.cuda.memory_stats()["allocation.all.allocated"], tap.report()["arena_bytes"]

    before = state()
    for step in range(5, 60):
        assert tap.capture(tensors, step=step) == 0
    torch.cuda.synchronize()
    assert state() == before


def test_a_call_makes_the_host_wait_for_nothing(tap: Tap) -> None:
    tensors = [torch.randn(30_000, device="cuda") for _ in range(5)]
    assert tap.capture(tensors) == 0  # the first call may wait: it sets up the device
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    with no_synchronisation():
        busy(rounds=300)
        for step in range(1, 11):
            assert tap.capture(tensors, step=step) == 0
        done.record()
    assert not done.query()  # the device still works, long after the last call has returned


def test_closing_with_copies_in_flight_loses_nothing(make_tap: MakeTap) -> None:
    for attempt in range(3):
        tap = make_tap()
        busy(rounds=20)
        for step in range(10):
            assert tap.capture([torch.full((200_000,), float(step), device="cuda")], step=step) == 0
        for step in range(10):  # the first value() closes the session
            assert (tap.value("t0", step) == step).all(), f"attempt {attempt}"


def test_no_commit_comes_before_its_bytes(tap: Tap) -> None:
    sizes = torch.randint(1, 300_000, (300,), generator=torch.Generator().manual_seed(1)).tolist()
    for step, size in enumerate(sizes):
        assert tap.capture([torch.full((size,), float(step), device="cuda")], step=step) == 0
    for step, size in enumerate(sizes):
        value = tap.value("t0", step)
        assert value.shape == (size,)
        assert value[-1] == step
    assert tap.report()["early_commits"] == 0
