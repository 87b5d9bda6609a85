"""Ring.capture() of tensors on devices: every protocol, by stream, with a simulated device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tdcore import _core
from tests import _sim
from tests.capturing import OK, SKIPPED, Array, Tap, check_statistics
from tests.simulating import (
    CUDA,
    ROCM,
    Buffered,
    DeviceTap,
    DlpackArray,
    ExchangeTensor,
    InterfaceArray,
    numbers,
)


@pytest.fixture
def tap() -> Iterator[DeviceTap]:
    tap = DeviceTap()
    yield tap
    tap.ring.close()


@pytest.fixture
def device(tap: DeviceTap) -> _sim.SimulatedDevice:
    return _sim.simulate_device(tap.ring, 0, delay_us=50)


@pytest.fixture(autouse=True)
def _no_streams() -> None:
    ExchangeTensor.current.clear()
    ExchangeTensor.asked.clear()


class Refusing(DlpackArray):
    """DLPack, and a __cuda_array_interface__ that raises for the dtype, as JAX has them for bfloat16."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise RuntimeError("dtype is not supported")


MAKERS: dict[str, Callable[[Array], object]] = {
    "exchange table": ExchangeTensor,
    "cupy": InterfaceArray,
    "numba": lambda values: InterfaceArray(values, numba=True),
    "interface without stream": lambda values: InterfaceArray(values, version=2),
    "interface without dtype": lambda values: InterfaceArray(values, named_dtype=False),
    "dlpack": DlpackArray,
    "dlpack and an interface that refuses": Refusing,
    "dlpack with a buffer": lambda values: Buffered(DlpackArray(values)),
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.float16])
def test_a_device_tensor_arrives_whole_whatever_the_protocol(
    tap: DeviceTap, device: _sim.SimulatedDevice, maker: str, dtype: type[Any]
) -> None:
    values = numbers(24, dtype).reshape(4, 6)[:, ::2]
    assert tap.capture([MAKERS[maker](values)]) == 0
    captured = tap.rows(1)
    assert np.array_equal(captured.value(0), values)
    check_statistics(captured.rows[0]["stats"], values)
    assert tap.drops() == {}


def test_a_transposed_and_an_empty_and_a_single_value_are_read(
    tap: DeviceTap, device: _sim.SimulatedDevice
) -> None:
    values = [numbers().reshape(3, 4).T, numbers(0), np.array(3.0)]
    assert tap.capture([ExchangeTensor(one) for one in values]) == 0
    captured = tap.rows(3)
    for position, one in enumerate(values):
        assert np.array_equal(captured.value(position), one)


def test_host_and_device_tensors_and_absent_ones_go_in_one_call(
    tap: DeviceTap, device: _sim.SimulatedDevice
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
    assert (counters["captures"], counters["tensors"]) == (1, 3)  # absent tensors are not kept alive


def test_each_stream_and_device_gets_a_group_in_the_order_of_its_first_tensor(tap: DeviceTap) -> None:
    for number in (0, 1):
        _sim.simulate_device(tap.ring, number, delay_us=0)
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
    tap: DeviceTap, device: _sim.SimulatedDevice
) -> None:
    _sim.simulate_device(tap.ring, 1, delay_us=0)
    ExchangeTensor.current.update({0: 5, 1: 6})
    tensors = [ExchangeTensor(numbers(), (CUDA, number)) for number in (0, 1, 0, 1)]
    assert tap.capture(tensors) == 0
    assert ExchangeTensor.asked == [(CUDA, 0), (CUDA, 1)]
    assert tap.capture(tensors[:1]) == 0
    assert len(ExchangeTensor.asked) == 3
    tap.rows(5)


def test_an_export_is_asked_to_be_ready_on_the_default_stream(
    tap: DeviceTap, device: _sim.SimulatedDevice
) -> None:
    array = DlpackArray(numbers())
    assert tap.capture([array]) == 0
    assert array.streams == [1]


class OldCuda:
    """The attributes of a CUDA tensor in torch before 2.10."""

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
    tap: DeviceTap, device: _sim.SimulatedDevice, monkeypatch: pytest.MonkeyPatch
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


# ---- Refused tensors ----------------------------------------------------------------------------------


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
    tap: DeviceTap, device: _sim.SimulatedDevice, name: str
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
        _sim.simulate_device(tap.ring, number, delay_us=0)
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
    tap: DeviceTap, device: _sim.SimulatedDevice
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
    tap: DeviceTap, device: _sim.SimulatedDevice
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
