"""Tensors captured on a device: readers return the exact bytes and the statistics of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.capturing import check_statistics
from tests.gpu.conftest import BOTH, SIMULATED, STATISTICS, VALUES, MakeTap, Tap, same_bits

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 1),
    "permuted": lambda t: t.permute(3, 1, 0, 2),
    "channels_last": lambda t: t.to(memory_format=torch.channels_last),
    "sliced": lambda t: t[:, 1:, ::2],
    "zero_d": lambda t: t[0, 1, 2, 3],
    "expanded": lambda t: t[:1].expand(5, -1, -1, -1),
    "expanded_scalar": lambda t: t[0, 0, 0, 0].expand(3, 4),
    "empty": lambda t: t[:0],
    "offset": lambda t: t[1:],
    "diagonal": lambda t: t[0, 0].diagonal(),
}
real_device = pytest.mark.skipif(SIMULATED, reason="needs a CUDA device")


def log2_counts(row: dict[str, Any]) -> Any:
    return np.array(row["log2_counts"] or [0])


def check_row(tap: Tap, name: str, tensor: torch.Tensor, step: int = 0) -> None:
    """Check the statistics of a row against NumPy's."""
    row = tap.statistics(name, step)
    floats = ("min", "max", "mean", "m2", "abs_sum", "square_sum", "abs_min", "abs_max")
    row |= {key: np.nan if row[key] is None else row[key] for key in floats}
    row["log2_counts"] = log2_counts(row)
    check_statistics(row, tensor.detach().cpu().double().numpy())


def odd_values(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return values of a dtype; for floating-point dtypes with NaN, infinities, zeros and subnormals."""
    values = torch.randn(count, dtype=torch.float64) * 20
    if dtype.is_floating_point:
        values[::7] = 0
        values[3::11] = float("nan")
        values[5::13] = float("inf")
        values[6::17] = float("-inf")
        values[1::19] = torch.finfo(dtype).smallest_normal / 2
    return values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_values_and_statistics_of_every_dtype_are_numpys(
    make_tap: MakeTap, device: torch.device, dtype: torch.dtype
) -> None:
    tensors = [odd_values(count, dtype).to(device) for count in (1, 15, 16_384, 16_385, 100_003)]
    tap = make_tap()
    assert tap.capture(tensors) == 0
    for i, tensor in enumerate(tensors):
        assert same_bits(tensor, tap.value(f"t{i}"))
        check_row(tap, f"t{i}", tensor)


@pytest.mark.parametrize("view", VIEWS)
def test_a_tensor_of_any_layout_arrives_in_c_order(tap: Tap, device: torch.device, view: str) -> None:
    base = torch.randn(6, 7, 8, 9)
    tensors = [VIEWS[view](base.to(dtype).to(device)) for dtype in (torch.float32, torch.bfloat16)]
    tensors.append(VIEWS[view]((base * 20).to(torch.int8).to(device)))
    assert tap.capture(tensors) == 0
    for i, tensor in enumerate(tensors):
        assert same_bits(tensor, tap.value(f"t{i}"))
        check_row(tap, f"t{i}", tensor)


def test_statistics_alone_need_no_values(tap: Tap, device: torch.device) -> None:
    tensors = [torch.randn(size).to(device) for size in (1, 1000, 70_000)]
    assert tap.capture(tensors, STATISTICS) == 0
    for i, tensor in enumerate(tensors):
        check_row(tap, f"t{i}", tensor)
        assert not tap.trial.rows(f"^t{i}$").to_pylist()[0]["nbytes"]


def test_values_alone_have_no_statistics(tap: Tap, device: torch.device) -> None:
    tensor = torch.randn(5000).to(device)
    assert tap.capture([tensor], VALUES) == 0
    assert same_bits(tensor, tap.value("t0"))


def test_five_hundred_tiny_tensors_arrive_in_one_call(tap: Tap, device: torch.device) -> None:
    tensors = [torch.randn(1 + i % 40).to(device) for i in range(500)]
    assert tap.capture(tensors) == 0
    for i, tensor in enumerate(tensors):
        assert same_bits(tensor, tap.value(f"t{i}"))


def test_a_tensor_larger_than_the_arena_arrives_in_parts(make_tap: MakeTap, device: torch.device) -> None:
    tap = make_tap(device_arena_bytes=1 << 22, when_full="block")
    tensor = torch.randn(5_000_000).to(device)
    assert tap.capture([tensor]) == 0
    assert same_bits(tensor, tap.value("t0"))


def test_host_and_device_tensors_of_one_call_all_arrive(tap: Tap, device: torch.device) -> None:
    tensors = [torch.full((100,), float(i)) for i in range(6)]
    mixed = [tensor.to(device) if i % 2 else tensor.numpy() for i, tensor in enumerate(tensors)]
    assert tap.capture(mixed) == 0
    rows = tap.trial.rows().to_pylist()
    assert len({row["seq"] for row in rows}) == 6  # each has its own call index in the step
    for i, tensor in enumerate(tensors):
        assert same_bits(tensor, tap.value(f"t{i}"))


def test_the_same_tensor_has_the_same_statistics_bit_for_bit(tap: Tap, device: torch.device) -> None:
    tensor = torch.randn(3_000_000).to(device)
    for step in range(20):
        assert tap.capture([tensor], STATISTICS, step=step) == 0
    rows = [tap.statistics("t0", step) for step in range(20)]
    for row in rows[1:]:
        assert [row[key] for key in ("mean", "m2", "abs_sum")] == [
            rows[0][key] for key in ("mean", "m2", "abs_sum")
        ]


# ---- Other producers -----------------------------------------------------------------------------------


class Interface:
    """__cuda_array_interface__, version 2, which has no stream, and the device, as in CuPy."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.device = SimpleNamespace(id=tensor.device.index)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.tensor.__cuda_array_interface__, "version": 2}


class Exported:
    """An object with only __dlpack__."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("wrap", [Interface, Exported])
def test_any_object_of_the_protocols_is_taken(tap: Tap, wrap: Callable[[torch.Tensor], object]) -> None:
    tensor = torch.randn(300, 200, device="cuda")
    torch.cuda.synchronize()  # neither object has the stream on which its values are computed
    assert tap.capture([wrap(tensor), wrap(tensor.t())]) == 0
    assert same_bits(tensor, tap.value("t0"))
    assert same_bits(tensor.t(), tap.value("t1"))


def test_an_interface_without_a_device_is_not_read(tap: Tap) -> None:
    wrapped = Interface(torch.zeros(10, device="cuda"))
    del wrapped.device  # the interface itself does not contain the number of the device
    assert tap.capture([wrapped]) == 1
    assert tap.drops() == {"unsupported_device": 1}


def test_an_interface_of_the_object_and_not_of_its_class_is_not_read(tap: Tap) -> None:
    wrapped = SimpleNamespace(
        __cuda_array_interface__=torch.zeros(10, device="cuda").__cuda_array_interface__
    )
    assert tap.capture([wrapped]) == 1
    assert tap.drops() == {"unreadable": 1}


def test_a_cupy_array_is_taken(tap: Tap) -> None:
    cupy = pytest.importorskip("cupy")
    array = cupy.random.standard_normal((300, 200)).astype(cupy.float32)
    assert tap.capture([array, array.T]) == 0
    assert tap.value("t0").tobytes() == array.get().tobytes()
    assert tap.value("t1").tobytes() == array.get().T.tobytes()


def test_a_jax_array_is_taken(tap: Tap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    try:
        place = jax.devices("cuda")[0]
    except RuntimeError:
        pytest.skip("the installed jax has no CUDA")
    array = jax.device_put(np.random.default_rng(0).standard_normal((50, 60), np.float32), place)
    assert tap.capture([array.block_until_ready()]) == 0
    assert tap.value("t0").tobytes() == np.asarray(array).tobytes()


@real_device
def test_values_come_back_to_the_device_by_cupy(tap: Tap) -> None:
    cupy = pytest.importorskip("cupy")
    tensor = torch.randn(1000, 7, device="cuda")
    assert tap.capture([tensor], BOTH) == 0
    read = tap.trial.tensor("t0").value(0, device="cuda")
    assert isinstance(read, cupy.ndarray)
    assert torch.equal(torch.utils.dlpack.from_dlpack(read), tensor)
