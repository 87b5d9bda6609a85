"""value(step, device="cuda"): the bytes of the file in a CuPy array.

CuPy cannot allocate on machines without a GPU, so a stand-in for the used functions tests the copies; the
last tests use the real CuPy, with and without a GPU.
"""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tdcore.errors import ConfigError
from tdcore.trial import create_trial, cupy_arrays
from tests.trial.writer import RunWriter


class FakeMemory:
    """The address of an array."""

    def __init__(self, address: int, log: list[int]) -> None:
        self.ptr = address
        self._log = log

    def __add__(self, offset: int) -> FakeMemory:
        return FakeMemory(self.ptr + offset, self._log)

    def copy_from_host_async(self, memory: ctypes.c_void_p, size: int, stream: object) -> None:
        ctypes.memmove(self.ptr, memory, size)
        self._log.append(size)


class FakeArray:
    """Host memory that claims to be on a device."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, device: int, log: list[int]) -> None:
        self.host = np.zeros(shape, dtype)
        self.device = device
        self.data = FakeMemory(self.host.ctypes.data, log)


class FakePinned(bytearray):
    """The result of alloc_pinned_memory(): a buffer with an address."""

    @property
    def ptr(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self))


class FakeStream:
    """A stream whose copies finish at once."""

    def __init__(self) -> None:
        self.waits = 0

    def record(self) -> FakeStream:
        return self

    def synchronize(self) -> None:
        self.waits += 1


class FakeCupy(types.ModuleType):
    """The part of CuPy that tdcore uses, with two devices."""

    class CUDARuntimeError(RuntimeError):
        """As CuPy's."""

    def __init__(self, version: str = "14.0.0") -> None:
        super().__init__("cupy")
        self.__version__ = version
        self.copies: list[int] = []
        self.pinned: list[int] = []
        self.stream = FakeStream()
        self.current = 0
        self.cuda = types.SimpleNamespace(
            Device=self._device,
            get_current_stream=lambda: self.stream,
            alloc_pinned_memory=self._alloc,
            runtime=types.SimpleNamespace(CUDARuntimeError=self.CUDARuntimeError),
        )

    def _alloc(self, size: int) -> FakePinned:
        self.pinned.append(size)
        return FakePinned(size)

    def _device(self, number: int) -> Any:
        cupy = self

        class Using:
            def __enter__(self) -> None:
                if number > 1:
                    raise FakeCupy.CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
                cupy.current = number

            def __exit__(self, *error: object) -> None:
                cupy.current = 0

        return Using()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> FakeArray:
        return FakeArray(shape, dtype, self.current, self.copies)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


def tensor_with(run: RunWriter, values: Any) -> Any:
    run.add("w", values, step=0)
    run.flush()
    run.end()
    return create_trial(run.root).tensor("w")


@pytest.mark.parametrize(
    "values",
    [
        np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        np.float64(1.5) * np.ones(()),
        np.zeros((0, 3), np.int64),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.arange(5).astype(ml_dtypes.bfloat16),
    ],
    ids=["f32", "scalar", "empty", "bool", "complex", "bfloat16"],
)
def test_values_arrive_on_the_device_bit_for_bit(cupy: FakeCupy, run: RunWriter, values: Any) -> None:
    array = tensor_with(run, values).value(0, device="cuda")
    assert array.device == 0
    assert (array.host.shape, array.host.dtype) == (values.shape, values.dtype)
    assert array.host.tobytes() == values.tobytes()


def test_the_number_behind_the_colon_chooses_the_device(cupy: FakeCupy, run: RunWriter) -> None:
    assert tensor_with(run, np.ones(3)).value(0, device="cuda:1").device == 1


def test_large_tensors_go_through_two_buffers_of_bounded_size(
    cupy: FakeCupy, run: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupy_arrays, "_PIECE_BYTES", 1024)
    values = np.random.default_rng(0).standard_normal(1000)
    array = tensor_with(run, values).value(0, device="cuda")
    assert array.host.tobytes() == values.tobytes()
    assert cupy.pinned == [1024, 1024]
    assert cupy.copies == [1024] * 7 + [832]


def test_the_copy_is_done_before_the_array_is_handed_out(cupy: FakeCupy, run: RunWriter) -> None:
    tensor_with(run, np.ones(3)).value(0, device="cuda")
    assert cupy.stream.waits == 1


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cuda:x", "cpu", "", "cuda:12345", 0])
def test_a_device_that_is_none_says_what_can_be_written(run: RunWriter, device: Any) -> None:
    with pytest.raises(ConfigError, match=r"None \(NumPy\), 'cuda' or 'cuda:N'"):
        tensor_with(run, np.ones(3)).value(0, device=device)


def test_a_device_that_is_not_there_is_an_error_with_cudas_words(cupy: FakeCupy, run: RunWriter) -> None:
    with pytest.raises(ConfigError, match=r"'w' at step 0 cannot be put on device cuda:7: .*invalid device"):
        tensor_with(run, np.ones(3)).value(0, device="cuda:7")


def test_types_that_cupy_lacks_are_refused_with_a_way_around(cupy: FakeCupy, run: RunWriter) -> None:
    values = np.ones(3).astype(ml_dtypes.float8_e4m3fn)
    with pytest.raises(ConfigError, match=r"float8_e4m3fn, which CuPy 14\.0\.0 lacks;.*astype\('float32'\)"):
        tensor_with(run, values).value(0, device="cuda")


def test_bfloat16_asks_for_a_cupy_that_has_it(run: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy("13.6.0"))
    with pytest.raises(ConfigError, match=r"CuPy 13\.6\.0 lacks \(CuPy has bfloat16 from 14 on\)"):
        tensor_with(run, np.ones(3).astype(ml_dtypes.bfloat16)).value(0, device="cuda")


def test_without_cupy_the_error_says_what_to_install(run: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ConfigError, match=r'pip install "tdcore-capture\[cupy\]"'):
        tensor_with(run, np.ones(3)).value(0, device="cuda")


def test_the_device_is_looked_at_before_the_run_is_read(run: RunWriter) -> None:
    with pytest.raises(ConfigError, match="got 'gpu'"):
        tensor_with(run, np.ones(3)).value(99, device="gpu")


def devices() -> int:
    """Return the number of devices of the real CuPy; skips without CuPy; 0 without a driver."""
    cupy = pytest.importorskip("cupy")
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


def test_the_real_cupy_without_a_gpu_gives_the_drivers_reason(run: RunWriter) -> None:
    if devices():
        pytest.skip("needs a machine without a GPU")
    with pytest.raises(ConfigError, match=r"cannot be put on device cuda:0: cudaError\w+"):
        tensor_with(run, np.ones(3)).value(0, device="cuda")
