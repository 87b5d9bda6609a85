"""Ring.capture() of tensors on devices: every protocol, by stream, with a simulated device behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tdcore import _core
from tests.capturing import BOTH, OK, PAYLOAD, SKIPPED, STATISTICS, Array, Captured, Tap, check_statistics
from tests.simulating import (
    CUDA,
    ROCM,
    Buffered,
    DlpackArray,
    ExchangeTensor,
    InterfaceArray,
    numbers,
)


class DeviceTap(Tap):
    """A ring with device lanes, and its consumer."""

    def __init__(self, *, lanes: int = 2) -> None:
        self.ring = _core.Ring(
            data_bytes=1 << 22,
            slots=256,
            policy="drop",
            device_lanes=lanes,
            device_lane_bytes=1 << 22,
            device_lane_slots=256,
            device_arena_bytes=1 << 20,
        )
        self.consumer = _core.Consumer(self.ring.fds)

    def rows(self, count: int) -> Captured:
        """The next rows, which devices commit when they come to it."""
        rows: list[Any] = []
        payloads: list[bytes | None] = []
        for _ in range(100_000):
            captured = self.take()
            rows += list(captured.rows)
            payloads += captured.payloads
            if len(rows) >= count:
                break
        assert len(rows) == count
        return Captured(np.array(rows, captured.rows.dtype), payloads)

    def errors(self) -> list[str]:
        return [report["error"] for report in self.ring.device_reports()]


@pytest.fixture
def tap() -> Iterator[DeviceTap]:
    tap = DeviceTap()
    yield tap
    tap.ring.close()


@pytest.fixture
def device(tap: DeviceTap) -> _core.SimulatedDevice:
    return _core.simulate_device(tap.ring, 0, delay_us=50)


@pytest.fixture(autouse=True)
def _no_streams() -> Iterator[None]:
    ExchangeTensor.current.clear()
    ExchangeTensor.asked.clear()
    yield


MAKERS: dict[str, Callable[[Array], object]] = {
    "exchange table": ExchangeTensor,
    "cupy": InterfaceArray,
    "numba": lambda values: InterfaceArray(values, numba=True),
    "interface without stream": lambda values: InterfaceArray(values, version=2),
    "interface without dtype": lambda values: InterfaceArray(values, named_dtype=False),
    "dlpack": DlpackArray,
    "dlpack with a buffer": lambda values: Buffered(DlpackArray(values)),
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.float16])
def test_a_device_tensor_arrives_whole_whatever_the_protocol(
    tap: DeviceTap, device: _core.SimulatedDevice, maker: str, dtype: type[Any]
) -> None:
    values = numbers(24, dtype).reshape(4, 6)[:, ::2]
    assert tap.capture([MAKERS[maker](values)]) == 0
    captured = tap.rows(1)
    assert np.array_equal(captured.value(0), values)
    check_statistics(captured.rows[0]["stats"], values)
    assert tap.drops() == {}


def test_a_transposed_and_an_empty_and_a_single_value_are_read(
    tap: DeviceTap, device: _core.SimulatedDevice
) -> None:
    values = [numbers().reshape(3, 4).T, numbers(0), np.array(3.0)]
    assert tap.capture([ExchangeTensor(one) for one in values]) == 0
    captured = tap.rows(3)
    for position, one in enumerate(values):
        assert np.array_equal(captured.value(position), one)


def test_host_and_device_tensors_and_absent_ones_go_in_one_call(
    tap: DeviceTap, device: _core.SimulatedDevice
) -> None:
    values = numbers()
    assert tap.capture([values, None, ExchangeTensor(values * 2), 7.0]) == 0
    captured = tap.rows(4)
    by_name = {int(row["name"]): position for position, row in enumerate(captured.rows)}
    names = [tap.ring.intern(f"t{i}", 1) for i in range(4)]
    assert np.array_equal(captured.value(by_name[names[0]]), values)
    assert np.array_equal(captured.value(by_name[names[2]]), values * 2)
    assert captured.value(by_name[names[3]]) == 7
    assert sorted(int(row["seq"]) for row in captured.rows) == [0, 1, 2, 3]
    counters = tap.ring.counters()
    assert (counters["captures"], counters["tensors"]) == (1, 4)


def test_each_stream_and_device_gets_a_group_in_the_order_of_its_first_tensor(tap: DeviceTap) -> None:
    for number in (0, 1):
        _core.simulate_device(tap.ring, number, delay_us=0)
    places = [(7, 0), (9, 0), (7, 1), (7, 0), (7, 1), (9, 0)]
    tensors = [
        InterfaceArray(np.full(3, float(i)), stream=stream, device=number)
        for i, (stream, number) in enumerate(places)
    ]
    assert tap.capture(tensors) == 0
    captured = tap.rows(6)
    order = {int(row["seq"]): int(row["stats"]["max"]) for row in captured.rows}
    assert [order[seq] for seq in range(6)] == [0, 3, 1, 5, 2, 4]


def test_the_current_stream_is_asked_once_per_call_and_device(
    tap: DeviceTap, device: _core.SimulatedDevice
) -> None:
    _core.simulate_device(tap.ring, 1, delay_us=0)
    ExchangeTensor.current.update({0: 5, 1: 6})
    tensors = [ExchangeTensor(numbers(), (CUDA, number)) for number in (0, 1, 0, 1)]
    assert tap.capture(tensors) == 0
    assert ExchangeTensor.asked == [(CUDA, 0), (CUDA, 1)]
    assert tap.capture(tensors[:1]) == 0
    assert len(ExchangeTensor.asked) == 3
    tap.rows(5)


def test_an_export_is_asked_to_be_ready_on_the_default_stream(
    tap: DeviceTap, device: _core.SimulatedDevice
) -> None:
    array = DlpackArray(numbers())
    assert tap.capture([array]) == 0
    assert array.streams == [1]


class OldCuda:
    """The attributes of a CUDA tensor of a torch from before 2.10."""

    def __init__(self, values: Array) -> None:
        self.values = values
        self.shape = values.shape
        self.dtype = "torch.float32"
        self.device = SimpleNamespace(type="cuda", index=0)

    def data_ptr(self) -> int:
        return int(self.values.__array_interface__["data"][0])

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.values.itemsize for step in self.values.strides)


def test_an_older_torch_tells_its_stream_without_being_imported(
    tap: DeviceTap, device: _core.SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def current_stream(number: int) -> SimpleNamespace:
        asked.append(number)
        return SimpleNamespace(cuda_stream=3)

    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(current_stream=current_stream))
    )
    values = numbers()
    assert tap.capture([OldCuda(values), OldCuda(values)]) == 0
    assert asked == [0]
    assert np.array_equal(tap.rows(2).value(1), values)
    monkeypatch.delitem(sys.modules, "torch")
    assert tap.capture([OldCuda(values)]) == 1
    assert tap.drops() == {"device_error": 1}


# ---- What is refused ------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[str, Callable[[], object]]] = {
    "rocm table": ("unsupported_device", lambda: ExchangeTensor(numbers(), (ROCM, 0))),
    "rocm export": ("unsupported_device", lambda: DlpackArray(numbers(), (ROCM, 0))),
    "managed memory": ("unsupported_device", lambda: DlpackArray(numbers(), (13, 0))),
    "negative device": ("unsupported_device", lambda: ExchangeTensor(numbers(), (CUDA, -1))),
    "huge device": ("unsupported_device", lambda: ExchangeTensor(numbers(), (CUDA, 1 << 20))),
    "masked": ("unreadable", lambda: InterfaceArray(numbers(), mask=InterfaceArray(numbers()))),
    "ambiguous stream": ("unreadable", lambda: InterfaceArray(numbers(), stream=0)),
    "big endian": ("unsupported_dtype", lambda: InterfaceArray(numbers().astype(">f4"))),
    "odd strides": ("unreadable", lambda: InterfaceArray(np.zeros(5, [("a", "<f4"), ("b", "i1")])["a"])),
    "too many dimensions": ("too_large", lambda: InterfaceArray(np.zeros([1] * 17))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_from_a_device_is_a_skipped_row(
    tap: DeviceTap, device: _core.SimulatedDevice, name: str
) -> None:
    reason, make = REFUSED[name]
    assert tap.capture([ExchangeTensor(numbers()), make()]) == 1
    captured = tap.rows(2)
    assert sorted(int(row["status"]) for row in captured.rows) == [OK, SKIPPED]
    assert tap.drops() == {reason: 1}
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("make", [ExchangeTensor, InterfaceArray, DlpackArray])
def test_a_ring_without_lanes_refuses_devices_and_asks_for_no_export(make: Callable[[Array], Any]) -> None:
    tap = Tap()
    array = make(numbers())
    assert tap.capture([array]) == 1
    assert tap.drops() == {"unsupported_device": 1}
    assert getattr(array, "streams", []) == []
    assert not tap.ring.prepare_device(0)
    assert tap.ring.device_reports() == []
    tap.ring.close()


def test_more_devices_than_lanes_are_refused_and_said() -> None:
    tap = DeviceTap(lanes=1)
    for number in (0, 1):
        _core.simulate_device(tap.ring, number, delay_us=0)
    assert tap.capture([ExchangeTensor(numbers(), (CUDA, number)) for number in (0, 1)]) == 1
    assert tap.drops() == {"unsupported_device": 1}
    assert "cuda:1 is not captured: all 1 device lanes are taken" in tap.ring.device_refusals()
    tap.ring.close()


def test_a_device_that_cannot_be_opened_is_counted_and_says_why(tap: DeviceTap) -> None:
    if any(name.startswith("nvidia") for name in os.listdir("/dev")):
        pytest.skip("this machine has an NVIDIA device")
    assert tap.capture([ExchangeTensor(numbers()), ExchangeTensor(numbers())]) == 2
    assert tap.drops() == {"device_error": 2}
    assert tap.ring.device_refusals().startswith("cuda:0 cannot be used: ")
    assert tap.errors() != [""]
    assert not tap.ring.prepare_device(0)


def test_a_stream_that_is_being_captured_into_a_graph_is_left_alone(
    tap: DeviceTap, device: _core.SimulatedDevice
) -> None:
    device.set_capturing(7, True)
    assert tap.capture([InterfaceArray(numbers())]) == 1  # not even set up
    assert device.operations == 0
    device.set_capturing(7, False)
    assert tap.capture([InterfaceArray(numbers())]) == 0
    device.set_capturing(7, True)
    operations = device.operations
    assert tap.capture([InterfaceArray(numbers())]) == 1
    assert device.operations == operations
    assert tap.drops() == {"graph_capture": 2}


def test_a_device_that_fails_is_counted_and_the_call_returns(
    tap: DeviceTap, device: _core.SimulatedDevice
) -> None:
    assert tap.capture([ExchangeTensor(numbers())]) == 0
    tap.rows(1)
    device.fail()
    for _ in range(3):
        tap.capture([ExchangeTensor(numbers())])
    assert tap.drops()["device_error"] > 0
    assert tap.errors() != [""]


def test_stats_refuse_a_device_tensor_and_say_what_to_do() -> None:
    with pytest.raises(TypeError, match="not in host memory"):
        _core.stats([ExchangeTensor(numbers())])


# ---- Foreign code ---------------------------------------------------------------------------------------


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
    tap: DeviceTap, device: _core.SimulatedDevice, early: bool
) -> None:
    assert tap.capture([ExchangeTensor(numbers()), Failing(ValueError("broken"), early=early)]) == 1
    assert tap.drops() == {"unreadable": 1}
    assert len(tap.rows(2).rows) == 2


@pytest.mark.parametrize("early", [False, True])
def test_an_interrupt_comes_after_the_capture(
    tap: DeviceTap, device: _core.SimulatedDevice, early: bool
) -> None:
    with pytest.raises(KeyboardInterrupt):
        tap.capture([Failing(KeyboardInterrupt(), early=early), ExchangeTensor(numbers())])
    assert sorted(int(row["status"]) for row in tap.rows(2).rows) == [OK, SKIPPED]


def test_an_export_may_capture_itself(tap: DeviceTap, device: _core.SimulatedDevice) -> None:
    class Nested(DlpackArray):
        def __dlpack__(self, *, stream: object = None) -> Any:
            tap.capture([ExchangeTensor(np.full(2, 7.0))], step=2)
            return super().__dlpack__(stream=stream)

    assert tap.capture([Nested(numbers()), ExchangeTensor(numbers())]) == 0
    assert sorted(int(row["stats"]["count"]) for row in tap.rows(3).rows) == [2, 12, 12]


# ---- How long exports are kept --------------------------------------------------------------------------


def test_exports_are_given_back_by_a_later_capture_once_they_were_read(
    tap: DeviceTap, device: _core.SimulatedDevice
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
    for _ in range(1000):  # the device says so itself, a little after its commit
        tap.capture([ExchangeTensor(numbers())], STATISTICS)
        tap.take()
        if array.returned:
            break
    assert array.returned == 1
    assert sys.getrefcount(owner) == before


def test_close_waits_for_what_is_in_flight_and_gives_exports_back(
    tap: DeviceTap, device: _core.SimulatedDevice
) -> None:
    arrays = [DlpackArray(numbers(1 << 14)) for _ in range(20)]
    owner = InterfaceArray(numbers())
    before = sys.getrefcount(owner)
    for array in arrays:
        assert tap.capture([array, owner], PAYLOAD) == 0
    tap.ring.close()
    assert [array.returned for array in arrays] == [1] * 20
    assert sys.getrefcount(owner) == before


def test_a_frameworks_own_tensors_are_not_kept(tap: DeviceTap, device: _core.SimulatedDevice) -> None:
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
    _core.simulate_device(tap.ring, 0)
    array = DlpackArray(numbers())
    assert tap.capture([array]) == 0
    del tap
    gc.collect()
    assert array.returned == 1


# ---- Steps, threads, fork -------------------------------------------------------------------------------


def records_of(tap: DeviceTap) -> list[int]:
    """Rows of each record that is there."""
    found = []
    while True:
        drained = tap.consumer.drain(1 << 30, 1)
        if drained.first_ticket == drained.end_ticket:
            return found
        found.append(len(bytes(drained.rows)) // np.dtype(_core.ROW_DTYPE).itemsize)
        drained.plan_segment([name for name, _, _ in tap.consumer.names(0)])
        tap.consumer.release(drained)


def test_the_mark_of_a_steps_end_comes_behind_what_devices_still_write(
    tap: DeviceTap, device: _core.SimulatedDevice
) -> None:
    _core.simulate_device(tap.ring, 1, delay_us=300)
    tap.ring.prepare_device(0)
    device.pause()
    assert tap.capture([ExchangeTensor(numbers(), (CUDA, number)) for number in (0, 1)]) == 0
    assert tap.ring.mark_step_end()
    early = records_of(tap)
    assert early.count(0) == 0  # no mark yet
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
    assert tap.ring.mark_step_end()
    assert records_of(tap) == [1, 0]


def test_threads_capture_on_streams_of_their_own(tap: DeviceTap, device: _core.SimulatedDevice) -> None:
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


def test_a_forked_child_touches_no_device(tap: DeviceTap, device: _core.SimulatedDevice) -> None:
    assert tap.capture([ExchangeTensor(numbers())]) == 0
    operations = device.operations
    child = os.fork()
    if child == 0:
        ok = tap.ring.capture([ExchangeTensor(numbers())], np.zeros(1, np.uint32), b"\3", 1, 1, 1) == 0
        ok = ok and not tap.ring.mark_step_end() and not tap.ring.prepare_device(0)
        ok = ok and tap.ring.device_reports() == [] and tap.ring.device_refusals() == ""
        tap.ring.close()
        ok = ok and device.operations == operations
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    tap.rows(1)


def test_reports_name_the_device_and_how_it_commits(tap: DeviceTap) -> None:
    _core.simulate_device(tap.ring, 0, rung="commit_kernel")
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
    _core.simulate_device(tap.ring, 0, rung=rung)
    values = numbers(5000)
    assert tap.capture([ExchangeTensor(values), ExchangeTensor(values[:7])], flags) == 0
    captured = tap.rows(2)
    if flags & PAYLOAD:
        assert np.array_equal(captured.value(0), values)
        assert np.array_equal(captured.value(1), values[:7])
    if flags & STATISTICS:
        check_statistics(captured.rows[0]["stats"], values)


def test_a_simulation_is_refused_where_it_would_come_too_late(
    tap: DeviceTap, device: _core.SimulatedDevice
) -> None:
    assert tap.capture([ExchangeTensor(numbers())]) == 0
    with pytest.raises(ValueError, match="device 0 is in use already"):
        _core.simulate_device(tap.ring, 0)
    with pytest.raises(ValueError, match="rung must be"):
        _core.simulate_device(tap.ring, 1, rung="best")
    with pytest.raises(ValueError, match="no device lanes"):
        _core.simulate_device(Tap().ring, 0)
