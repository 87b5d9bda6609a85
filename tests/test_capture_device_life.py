"""Device tensors in Ring.capture(): user code, how long exports are kept, steps, threads, fork."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests import _sim
from tests.capturing import BOTH, OK, PAYLOAD, ROW, SKIPPED, STATISTICS, Tap, check_statistics
from tests.simulating import CUDA, DeviceTap, DlpackArray, ExchangeTensor, InterfaceArray, numbers


@pytest.fixture
def tap() -> Iterator[DeviceTap]:
    tap = DeviceTap()
    yield tap
    tap.ring.close()


@pytest.fixture
def device(tap: DeviceTap) -> _sim.SimulatedDevice:
    return _sim.simulate_device(tap.ring, 0, delay_us=50)


# ---- User code ------------------------------------------------------------------------------------------


class Failing:
    """An export on a device that raises."""

    def __init__(self, error: BaseException, *, early: bool = False) -> None:
        self.error = error
        self.early = early

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.early:
            raise self.error
        return CUDA, 0

    def __dlpack__(self, **options: object) -> object:
        raise self.error


@pytest.mark.parametrize("early", [False, True])
def test_an_export_that_raises_costs_its_own_row_only(
    tap: DeviceTap, device: _sim.SimulatedDevice, early: bool
) -> None:
    assert tap.capture([ExchangeTensor(numbers()), Failing(ValueError("broken"), early=early)]) == 1
    assert tap.drops() == {"unreadable": 1}
    assert len(tap.rows(2).rows) == 2


@pytest.mark.parametrize("early", [False, True])
def test_an_interrupt_comes_after_the_capture(
    tap: DeviceTap, device: _sim.SimulatedDevice, early: bool
) -> None:
    with pytest.raises(KeyboardInterrupt):
        tap.capture([Failing(KeyboardInterrupt(), early=early), ExchangeTensor(numbers())])
    assert sorted(int(row["status"]) for row in tap.rows(2).rows) == [OK, SKIPPED]


def test_an_export_may_capture_itself(tap: DeviceTap, device: _sim.SimulatedDevice) -> None:
    class Nested(DlpackArray):
        def __dlpack__(self, *, stream: object = None) -> Any:
            tap.capture([ExchangeTensor(np.full(2, 7.0))], step=2)
            return super().__dlpack__(stream=stream)

    assert tap.capture([Nested(numbers()), ExchangeTensor(numbers())]) == 0
    assert sorted(int(row["stats"]["count"]) for row in tap.rows(3).rows) == [2, 12, 12]


# ---- How long exports are kept --------------------------------------------------------------------------


def test_exports_are_given_back_by_a_later_capture_once_they_were_read(
    tap: DeviceTap, device: _sim.SimulatedDevice
) -> None:
    tap.ring.prepare_device(0)
    device.pause()
    array, owner = DlpackArray(numbers()), InterfaceArray(numbers())
    before = sys.getrefcount(owner)
    assert tap.capture([array, owner]) == 0
    assert tap.capture([ExchangeTensor(numbers())]) == 0
    assert array.returned == 0
    assert sys.getrefcount(owner) == before + 1
    device.resume()
    tap.rows(3)
    for _ in range(1000):  # the device reports it a little after its commit
        tap.capture([ExchangeTensor(numbers())], STATISTICS)
        tap.take()
        if array.returned:
            break
    assert array.returned == 1
    assert sys.getrefcount(owner) == before


def test_close_waits_for_what_is_in_flight_and_gives_exports_back(
    tap: DeviceTap, device: _sim.SimulatedDevice
) -> None:
    arrays = [DlpackArray(numbers(1 << 12)) for _ in range(20)]
    owner = InterfaceArray(numbers())
    before = sys.getrefcount(owner)
    for array in arrays:
        assert tap.capture([array, owner], PAYLOAD) == 0
    tap.ring.close()
    assert [array.returned for array in arrays] == [1] * 20
    assert sys.getrefcount(owner) == before


def test_what_a_failed_device_never_reads_is_given_back_at_once(
    tap: DeviceTap, device: _sim.SimulatedDevice
) -> None:
    tap.ring.prepare_device(0)
    device.fail()
    assert tap.capture([ExchangeTensor(numbers())]) == 1
    array, owner = DlpackArray(numbers()), InterfaceArray(numbers())
    before = sys.getrefcount(owner)
    assert tap.capture([array, owner]) == 2
    assert tap.drops() == {"device_error": 3}
    assert array.returned == 1
    assert sys.getrefcount(owner) == before


def test_a_frameworks_own_tensors_are_not_kept(tap: DeviceTap, device: _sim.SimulatedDevice) -> None:
    tap.ring.prepare_device(0)
    device.pause()
    tensor = ExchangeTensor(numbers())
    before = sys.getrefcount(tensor)
    assert tap.capture([tensor]) == 0
    assert sys.getrefcount(tensor) == before
    device.resume()
    tap.rows(1)


def test_a_ring_that_is_dropped_gives_exports_back() -> None:
    tap = DeviceTap()
    _sim.simulate_device(tap.ring, 0)
    array = DlpackArray(numbers())
    assert tap.capture([array]) == 0
    del tap
    gc.collect()
    assert array.returned == 1


# ---- Steps, threads, fork -------------------------------------------------------------------------------


def records_of(tap: DeviceTap) -> list[int]:
    """Return the number of rows of each record in the ring, and release the records."""
    found: list[int] = []
    while True:
        drained = tap.consumer.drain(1 << 30, 1)
        if drained.first_ticket == drained.end_ticket:
            return found
        found.append(len(bytes(drained.rows)) // ROW.itemsize)
        drained.plan_segment([name for name, *_ in tap.consumer.names(0)])
        tap.consumer.release(drained)


def test_the_mark_of_a_steps_end_comes_behind_what_devices_still_write(
    tap: DeviceTap, device: _sim.SimulatedDevice
) -> None:
    _sim.simulate_device(tap.ring, 1, delay_us=300)
    tap.ring.prepare_device(0)
    device.pause()
    assert tap.capture([ExchangeTensor(numbers(), (CUDA, number)) for number in (0, 1)]) == 0
    assert tap.ring.mark_step_end(0)
    early = records_of(tap)
    assert early.count(0) == 0  # the step end is not marked yet
    device.resume()
    found = early
    for _ in range(100_000):
        found += records_of(tap)
        if 0 in found:
            break
    assert found.index(0) == len(found) - 1
    assert sum(found) == 2


def test_a_mark_without_devices_in_use_goes_the_old_way(tap: DeviceTap) -> None:
    assert tap.capture([numbers()]) == 0
    assert tap.ring.mark_step_end(0)
    assert records_of(tap) == [1, 0]


def test_threads_capture_on_streams_of_their_own(tap: DeviceTap, device: _sim.SimulatedDevice) -> None:
    def work(stream: int) -> None:
        for i in range(20):
            array = InterfaceArray(np.full(100, float(stream * 1000 + i)), stream=stream)
            assert tap.capture([array], step=i) == 0

    threads = [threading.Thread(target=work, args=(stream,)) for stream in (3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    captured = tap.rows(60)
    expected = [float(stream * 1000 + i) for stream in (3, 4, 5) for i in range(20)]
    assert sorted(float(row["stats"]["mean"]) for row in captured.rows) == expected
    assert sorted(float(captured.value(i)[99]) for i in range(60)) == expected
    assert device.violations == 0
    assert tap.drops() == {}


def test_a_forked_child_touches_no_device(tap: DeviceTap, device: _sim.SimulatedDevice) -> None:
    assert tap.capture([ExchangeTensor(numbers())]) == 0
    operations = device.operations
    child = os.fork()
    if child == 0:
        ok = tap.ring.capture([ExchangeTensor(numbers())], np.zeros(1, np.uint32), b"\3", 1, 1, 1) == 0
        ok = ok and not tap.ring.mark_step_end(0) and not tap.ring.prepare_device(0)
        ok = ok and tap.ring.device_reports() == [] and tap.ring.device_refusals() == ""
        tap.ring.close()
        ok = ok and device.operations == operations
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    tap.rows(1)


def test_reports_name_the_device_and_how_it_commits(tap: DeviceTap) -> None:
    _sim.simulate_device(tap.ring, 0, rung="commit_kernel")
    assert tap.ring.device_reports() == []
    assert tap.ring.prepare_device(0)
    (report,) = tap.ring.device_reports()
    assert report["device"] == 0
    assert report["kernels"] == "host"
    assert report["rung"] == "commit_kernel"
    assert report["early_commits"] == 0
    assert report["error"] == ""


@pytest.mark.parametrize("flags", [PAYLOAD, STATISTICS, BOTH])
@pytest.mark.parametrize("rung", ["stream_write", "commit_kernel", "poll"])
def test_every_rung_commits_what_was_asked(tap: DeviceTap, rung: str, flags: int) -> None:
    _sim.simulate_device(tap.ring, 0, rung=rung)
    values = numbers(5000)
    assert tap.capture([ExchangeTensor(values), ExchangeTensor(values[:7])], flags) == 0
    captured = tap.rows(2)
    if flags & PAYLOAD:
        assert np.array_equal(captured.value(0), values)
        assert np.array_equal(captured.value(1), values[:7])
    if flags & STATISTICS:
        check_statistics(captured.rows[0]["stats"], values)


def test_a_simulation_is_refused_where_it_would_come_too_late(
    tap: DeviceTap, device: _sim.SimulatedDevice
) -> None:
    assert tap.capture([ExchangeTensor(numbers())]) == 0
    with pytest.raises(ValueError, match="device 0 is already in use"):
        _sim.simulate_device(tap.ring, 0)
    with pytest.raises(ValueError, match="rung must be"):
        _sim.simulate_device(tap.ring, 1, rung="best")
    with pytest.raises(ValueError, match="no device lanes"):
        _sim.simulate_device(Tap().ring, 0)


@pytest.mark.parametrize(
    "other", [object(), ExchangeTensor.__dlpack_c_exchange_api__], ids=["object", "capsule"]
)
def test_a_ring_refuses_an_object_that_contains_no_device(tap: DeviceTap, other: object) -> None:
    with pytest.raises(TypeError, match=r"must be a capsule named 'tdcore\.Device'"):
        tap.ring._use_device(0, other, host_tensors=False)


def test_other_threads_run_while_the_queue_of_the_driver_is_full(tap: DeviceTap) -> None:
    device = _sim.simulate_device(tap.ring, 0, delay_us=5000, queue_limit=2)
    for _ in range(3):  # these calls wait, so the next ones are made without the GIL
        tap.capture([ExchangeTensor(numbers())])
    device.pause()
    waiting, resumed = threading.Event(), threading.Event()

    def resume() -> None:
        waiting.wait()
        time.sleep(0.05)  # the capture waits now, for longer than its thread needs to reach the driver
        resumed.set()
        device.resume()

    thread = threading.Thread(target=resume)
    thread.start()
    waiting.set()
    tap.capture([ExchangeTensor(numbers())])  # three pieces of work, for a queue of two
    assert resumed.is_set()
    thread.join()
    tap.rows(4)
    assert device.violations == 0
