"""Ring.capture() and stats(): what goes in as a Python object comes out as a row and bytes, unchanged."""

from __future__ import annotations

import array
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tdcore import _core

STATS = np.dtype([tuple(field) for field in _core.STATS_DTYPE])
ROW = np.dtype(_core.ROW_DTYPE)
CODES = {name: code for code, name in _core.DTYPES.items()}
NO_PAYLOAD = 2**64 - 1
NO_NAME = 2**32 - 1
PAYLOAD, STATISTICS, BOTH = 1, 2, 3
OK, ABSENT, SKIPPED = 0, 1, 2
NUMPY_OF = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F32": np.float32, "F64": np.float64, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "C64": np.complex64, "C128": np.complex128,
}  # fmt: skip
Array = npt.NDArray[Any]


@dataclass
class Captured:
    """Rows of one drain, with the payload bytes of each (None where there is none)."""

    rows: Array
    payloads: list[bytes | None]

    def value(self, index: int) -> Array:
        row, payload = self.rows[index], self.payloads[index]
        assert payload is not None
        shape = tuple(int(extent) for extent in row["shape"][: row["ndim"]])
        return np.frombuffer(payload, NUMPY_OF[_core.DTYPES[int(row["dtype"])]]).reshape(shape)


class Tap:
    """A ring and its consumer in one process."""

    def __init__(self, *, data_bytes: int = 1 << 24, policy: str = "drop") -> None:
        self.ring = _core.Ring(data_bytes=data_bytes, slots=256, policy=policy, block_timeout_seconds=0.01)
        self.consumer = _core.Consumer(self.ring.fd)

    def capture(self, tensors: Sequence[object], flags: int = BOTH, *, step: int = 1, call: int = 0) -> int:
        ids = [self.ring.intern(f"t{i}", 1) for i in range(len(tensors))]
        marks = bytes([flags]) * len(tensors)
        return int(self.ring.capture(tensors, np.array(ids, np.uint32), marks, step, 1, step, call))

    def take(self) -> Captured:
        drained = self.consumer.drain(1 << 30, 1 << 20)
        assert drained.torn == 0
        drained.plan_segment([name for name, _, _ in self.consumer.names(0)])
        file = b"".join(bytes(part) for part in drained.segment_parts())
        rows = np.frombuffer(drained.rows, ROW).copy()
        payloads = [
            None if row["payload_offset"] == NO_PAYLOAD
            else file[int(row["segment_offset"]) : int(row["segment_offset"] + row["payload_bytes"])]
            for row in rows
        ]  # fmt: skip
        self.consumer.release(drained)
        return Captured(rows, payloads)

    def one(self, tensor: object, flags: int = BOTH) -> Captured:
        self.capture([tensor], flags)
        captured = self.take()
        assert len(captured.rows) == 1
        return captured

    def drops(self) -> dict[str, int]:
        return {reason: drop["tensors"] for reason, drop in self.ring.counters()["drops"].items() if drop["tensors"]}


@pytest.fixture
def tap() -> Iterator[Tap]:
    tap = Tap()
    yield tap
    tap.ring.close()


def stats_of(tensor: object) -> Any:
    return np.frombuffer(_core.stats([tensor]), STATS)[0]


def check_statistics(row: Any, values: Array) -> None:
    """Against float64 NumPy over the finite values."""
    wide = values.astype(np.float64).ravel()
    finite = wide[np.isfinite(wide)]
    assert row["count"] == wide.size
    assert row["nan_count"] == np.isnan(wide).sum()
    assert row["pos_inf_count"] == np.isposinf(wide).sum()
    assert row["neg_inf_count"] == np.isneginf(wide).sum()
    assert row["zero_count"] == (finite == 0).sum()
    assert row["log2_counts"].sum() == (finite != 0).sum()
    if finite.size == 0:
        assert np.isnan(row["min"])
        assert np.isnan(row["max"])
        return
    assert row["min"] == finite.min()
    assert row["max"] == finite.max()
    assert row["abs_max"] == np.abs(finite).max()
    scale = np.abs(finite).sum()
    assert abs(row["mean"] - finite.mean()) * finite.size <= 1e-6 * scale
    np.testing.assert_allclose(row["abs_sum"], scale, rtol=1e-6)
    np.testing.assert_allclose(row["square_sum"], np.square(finite).sum(), rtol=1e-6)
    spread = np.square(finite - finite.mean()).sum()
    np.testing.assert_allclose(row["m2"], spread, rtol=1e-5, atol=1e-9 * np.square(finite).sum())


# ---- Any dtype, shape and strides -------------------------------------------------------------------


@st.composite
def strided_arrays(draw: st.DrawFn) -> Array:
    """An array of any dtype, then views of it: permuted, sliced, flipped, expanded, broadcast to nothing."""
    dtype = np.dtype(NUMPY_OF[draw(st.sampled_from(sorted(NUMPY_OF)))])
    shape = draw(st.lists(st.integers(0, 7), max_size=4))
    count = int(np.prod(shape, dtype=np.int64))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    if draw(st.booleans()):  # any bits, NaN and Inf among them
        raw = generator.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
        values = (raw[:count] & 1).astype(np.bool_) if dtype == np.bool_ else raw.view(dtype)
    else:
        values = generator.normal(scale=3, size=count).astype(dtype)
    view = values.reshape(shape)
    if view.ndim:
        view = view.transpose(draw(st.permutations(range(view.ndim))))
        steps = st.sampled_from([slice(None), slice(None, None, -1), slice(1, None, 2), slice(None, None, -3)])
        view = view[tuple(draw(steps) for _ in range(view.ndim))]
    if draw(st.booleans()):
        view = np.broadcast_to(view, (draw(st.integers(0, 3)), *view.shape))
    return view


@given(view=strided_arrays(), flags=st.sampled_from([PAYLOAD, STATISTICS, BOTH]))
def test_any_array_arrives_with_its_bits_and_its_statistics(view: Array, flags: int) -> None:
    tap = Tap(data_bytes=1 << 20)
    try:
        name = next(name for name, dtype in NUMPY_OF.items() if np.dtype(dtype) == view.dtype)
        has_statistics = name not in ("C64", "C128")
        lost = tap.capture([view], flags)
        captured = tap.take()
        row = captured.rows[0]
        assert row["dtype"] == CODES[name]
        assert tuple(row["shape"][: row["ndim"]]) == view.shape
        if flags == STATISTICS and not has_statistics:
            assert lost == 1
            assert row["status"] == SKIPPED
            return
        assert lost == 0
        assert row["status"] == OK
        if flags & PAYLOAD:
            assert captured.value(0).tobytes() == view.tobytes()
        else:
            assert captured.payloads[0] is None
        assert row["has_stats"] == int(bool(flags & STATISTICS) and has_statistics)
        if row["has_stats"]:
            with np.errstate(all="ignore"):
                if name != "F64" or np.all(np.abs(view[np.isfinite(view)]) < 1e150):
                    check_statistics(row["stats"], view)
                assert row["stats"]["count"] == stats_of(view)["count"]
    finally:
        tap.ring.close()


TORCH_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 1),
    "permuted": lambda t: t.permute(3, 1, 0, 2),
    "channels_last": lambda t: t.to(memory_format=torch.channels_last),
    "sliced": lambda t: t[:, 1:, ::2],
    "selected": lambda t: t[0, 1],
    "zero_d": lambda t: t[0, 1, 2, 3],
    "expanded": lambda t: t[:1].expand(5, -1, -1, -1),
    "expanded_scalar": lambda t: t[0, 0, 0, 0].expand(3, 4),
    "empty": lambda t: t[:0],
    "offset": lambda t: t[1:],
    "diagonal": lambda t: t[0, 0].diagonal(),
}


@pytest.mark.parametrize("view", TORCH_VIEWS)
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int64,
     torch.uint8, torch.bool],
)  # fmt: skip
def test_a_torch_tensor_of_any_layout_arrives_in_c_order(tap: Tap, view: str, dtype: torch.dtype) -> None:
    base = (torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5) % 100).to(torch.float32).sub(50).to(dtype)
    tensor = TORCH_VIEWS[view](base)
    captured = tap.one(tensor)
    expected = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    payload = captured.payloads[0]
    assert payload is not None
    assert np.array_equal(np.frombuffer(payload, np.uint8), expected)
    assert tuple(captured.rows[0]["shape"][: tensor.dim()]) == tuple(tensor.shape)
    check_statistics(captured.rows[0]["stats"], tensor.double().numpy())


def test_a_tensor_of_seventeen_dimensions_is_skipped_and_counted(tap: Tap) -> None:
    captured = tap.one(torch.zeros([1] * 17))
    assert captured.rows[0]["status"] == SKIPPED
    assert tap.drops() == {"too_large": 1}
    assert tap.one(torch.zeros([1] * 16)).rows[0]["ndim"] == 16


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("data_bytes", [1 << 16, 1 << 23])
def test_a_tensor_larger_than_a_record_comes_in_parts_that_make_it_whole(data_bytes: int, transposed: bool) -> None:
    tap = Tap(data_bytes=data_bytes)
    rows = tap.ring.max_record_bytes // 4 // 100
    tensor = torch.randn(rows, 333).T if transposed else torch.randn(333, rows)
    tap.capture([tensor])
    captured = tap.take()
    assert len(captured.rows) > 1
    assert [int(row["part"]) for row in captured.rows] == list(range(len(captured.rows)))
    assert all(row["parts"] == len(captured.rows) for row in captured.rows)
    parts = [np.frombuffer(payload or b"", np.float32) for payload in captured.payloads]
    assert [int(row["element_offset"]) for row in captured.rows] == [0, *np.cumsum([len(p) for p in parts])[:-1]]
    assert np.array_equal(np.concatenate(parts), tensor.numpy().ravel())
    for row, part in zip(captured.rows, parts, strict=True):
        check_statistics(row["stats"], part)
    tap.ring.close()


def test_statistics_alone_of_a_tensor_larger_than_a_record_take_one_row() -> None:
    tap = Tap(data_bytes=1 << 16)
    tensor = torch.randn(100, 1000)
    tap.capture([tensor.T], STATISTICS)
    captured = tap.take()
    assert len(captured.rows) == 1
    assert captured.rows[0]["parts"] == 1
    check_statistics(captured.rows[0]["stats"], tensor.numpy())
    tap.ring.close()


# ---- Autograd and PyTorch's special tensors -----------------------------------------------------------


def test_capturing_leaves_autograd_alone(tap: Tap) -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4))
    hidden = weight @ weight
    inner = hidden.relu()
    versions = [t._version for t in (weight, hidden, inner)]
    node = inner.grad_fn
    assert tap.capture([weight, hidden, inner]) == 0
    assert [t._version for t in (weight, hidden, inner)] == versions
    assert inner.grad_fn is node
    assert weight.grad is None
    inner.sum().backward()
    expected = torch.autograd.grad((weight @ weight).relu().sum(), weight)[0]
    assert weight.grad is not None
    assert torch.equal(weight.grad, expected)
    captured = tap.take()
    for i, tensor in enumerate((weight, hidden, inner)):
        assert np.array_equal(captured.value(i), tensor.detach().numpy())


def test_the_values_of_the_moment_are_kept_when_the_tensor_changes_later(tap: Tap) -> None:
    tensor = torch.ones(1000)
    tap.capture([tensor])
    tensor.zero_()
    assert np.all(tap.take().value(0) == 1)


def test_the_gradient_of_a_sum_has_stride_zero_and_is_read_within_its_storage(tap: Tap) -> None:
    seen: list[torch.Tensor] = []
    values = torch.randn(100, requires_grad=True)
    doubled = values * 1
    doubled.register_hook(lambda gradient: (seen.append(gradient), tap.capture([gradient]), None)[2])
    doubled.sum().backward()
    assert seen[0].stride() == (0,)
    assert np.array_equal(tap.take().value(0), np.ones(100, np.float32))


def test_plain_subclasses_are_read_like_tensors(tap: Tap) -> None:
    class Named(torch.Tensor):
        pass

    tensor = torch.randn(3)
    assert np.array_equal(tap.one(tensor.as_subclass(Named)).value(0), tensor.numpy())
    assert np.array_equal(tap.one(torch.nn.Parameter(tensor)).value(0), tensor.numpy())
    assert np.array_equal(tap.one(torch.nn.Buffer(tensor)).value(0), tensor.numpy())


@pytest.mark.parametrize("index", [slice(None), 0, slice(0, 1)])
def test_lazily_negated_and_conjugated_tensors_are_carried_out_first(tap: Tap, index: Any) -> None:
    complex_tensor = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    conjugate = complex_tensor.conj()
    assert conjugate.is_conj()
    negative = conjugate.imag[index]
    assert negative.is_neg()
    captured = tap.one(conjugate, PAYLOAD)
    assert np.array_equal(captured.value(0), conjugate.detach().resolve_conj().numpy())
    captured = tap.one(negative)
    assert np.array_equal(captured.value(0), negative.detach().resolve_neg().numpy())
    assert captured.rows[0]["stats"]["max"] == negative.max().item()


def fake_tensor() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.ones(3))


def resized_to_nothing() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


class Wrapper(torch.Tensor):
    """A tensor without storage of its own, as DTensor is."""

    @staticmethod
    def __new__(cls) -> Wrapper:  # noqa: PYI034 - torch's way
        made = torch.Tensor._make_wrapper_subclass(cls, (3,), dtype=torch.float32)  # type: ignore[attr-defined]
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("no operator may be called by a capture")


SPECIAL: dict[str, tuple[str, Callable[[], object]]] = {
    "meta": ("no_storage", lambda: torch.ones(3, device="meta")),
    "fake": ("no_storage", fake_tensor),
    "wrapper": ("no_storage", Wrapper),
    "uninitialised": ("no_storage", torch.nn.parameter.UninitializedParameter),
    "resized": ("no_storage", resized_to_nothing),
    "zero_tensor": ("no_storage", lambda: torch._efficientzerotensor(3)),  # type: ignore[attr-defined]
    "sparse": ("sparse", lambda: torch.eye(3).to_sparse()),
    "float8_fnuz": ("unsupported_dtype", lambda: torch.ones(3).to(torch.float8_e4m3fnuz)),
    "object_array": ("unsupported_dtype", lambda: np.array([object()])),
    "big_endian": ("unsupported_dtype", lambda: np.ones(3, ">f4")),
    "long_double": ("unsupported_dtype", lambda: np.ones(3, np.longdouble)),
    "datetime": ("unsupported_dtype", lambda: np.zeros(3, "M8[ns]")),
    "int4": ("unsupported_dtype", lambda: np.zeros(3, ml_dtypes.int4)),
    "text": ("unreadable", lambda: "text"),
    "list": ("unreadable", lambda: [1.0, 2.0]),
    "plain_object": ("unreadable", object),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_what_cannot_be_read_is_a_skipped_row_and_counted_with_its_reason(tap: Tap, name: str) -> None:
    reason, make = SPECIAL[name]
    assert tap.capture([torch.ones(2), make(), torch.ones(2)]) == 1
    captured = tap.take()
    assert [int(row["status"]) for row in captured.rows] == [OK, SKIPPED, OK]
    assert _core.DROP_REASONS[int(captured.rows[1]["reason"])] == reason
    assert captured.payloads[1] is None
    assert tap.drops() == {reason: 1}
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("make", [lambda t: t.to_sparse_csr(), lambda t: torch.nested.nested_tensor([t, t])])
@pytest.mark.filterwarnings("ignore")  # prototype features warn when first used
def test_layouts_without_strides_count_as_sparse(tap: Tap, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert tap.capture([make(torch.eye(3))]) == 1
    assert tap.drops() == {"sparse": 1}


@pytest.mark.filterwarnings("ignore")  # quantised tensors are deprecated
def test_a_quantised_tensor_is_an_unsupported_dtype(tap: Tap) -> None:
    assert tap.capture([torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)]) == 1
    assert tap.drops() == {"unsupported_dtype": 1}


def test_a_tensor_inside_vmap_has_no_storage(tap: Tap) -> None:
    lost: list[int] = []

    def body(row: torch.Tensor) -> torch.Tensor:
        lost.append(tap.capture([row]))
        return row

    torch.vmap(body)(torch.ones(2, 3))
    assert lost == [1]
    assert tap.drops() == {"no_storage": 1}


class OldTensor:
    """The attributes of a torch tensor without DLPack's exchange table, as PyTorch had them before 2.10."""

    def __init__(self, tensor: torch.Tensor, device: str | None = None) -> None:
        self.tensor = tensor
        self._device = device

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def layout(self) -> torch.layout:
        return self.tensor.layout

    @property
    def device(self) -> torch.device:
        return torch.device(self._device) if self._device else self.tensor.device

    def data_ptr(self) -> int:
        return self.tensor.data_ptr()

    def stride(self) -> tuple[int, ...]:
        return self.tensor.stride()

    def is_neg(self) -> bool:
        return self.tensor.is_neg()

    def is_conj(self) -> bool:
        return self.tensor.is_conj()

    def detach(self) -> OldTensor:
        return OldTensor(self.tensor.detach())

    def resolve_conj(self) -> OldTensor:
        return OldTensor(self.tensor.resolve_conj())

    def resolve_neg(self) -> OldTensor:
        return OldTensor(self.tensor.resolve_neg())


@pytest.mark.parametrize("view", TORCH_VIEWS)
def test_an_older_torch_is_read_through_its_attributes(tap: Tap, view: str) -> None:
    tensor = TORCH_VIEWS[view](torch.randn(2, 3, 4, 5).bfloat16().requires_grad_())
    captured = tap.one(OldTensor(tensor))
    payload = captured.payloads[0]
    assert payload == tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    check_statistics(captured.rows[0]["stats"], tensor.detach().double().numpy())


def test_an_older_torch_is_refused_where_it_has_nothing_to_read(tap: Tap) -> None:
    assert tap.capture([OldTensor(torch.ones(2), "cuda:0"), OldTensor(torch.ones(2, device="meta"))]) == 2
    assert tap.capture([OldTensor(torch.eye(2).to_sparse()), OldTensor(torch.ones(2).to(torch.float8_e4m3fnuz))]) == 2
    assert tap.drops() == {"unsupported_device": 1, "no_storage": 1, "sparse": 1, "unsupported_dtype": 1}


def test_an_older_torch_resolves_lazy_bits_too(tap: Tap) -> None:
    tensor = torch.randn(4, dtype=torch.complex64).conj()
    assert np.array_equal(tap.one(OldTensor(tensor), PAYLOAD).value(0), tensor.resolve_conj().numpy())
    assert np.array_equal(tap.one(OldTensor(tensor.imag)).value(0), tensor.imag.resolve_neg().numpy())


# ---- Arrays, numbers and other producers ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(True, "BOOL"), (False, "BOOL"), (-3, "I64"), (2.5, "F64"), (float("nan"), "F64"), (2**70, "F64"), (1 + 2j, "C128"),
     (np.float32(1.5), "F32"), (np.float64(1.5), "F64"), (np.int8(-1), "I8"), (np.bool_(True), "BOOL"), (np.uint64(2**64 - 1), "U64"),
     (np.float16(2), "F16"), (np.longdouble(3), "F64"), (ml_dtypes.bfloat16(1.5), "F64")],
)  # fmt: skip
def test_a_number_is_a_tensor_of_one_element(tap: Tap, value: Any, dtype: str) -> None:
    captured = tap.one(value)
    row = captured.rows[0]
    assert row["ndim"] == 0
    assert row["elements"] == 1
    assert _core.DTYPES[int(row["dtype"])] == dtype
    np.testing.assert_array_equal(captured.value(0)[()], np.asarray(value, dtype=NUMPY_OF[dtype]))


def test_a_number_too_large_for_a_double_is_skipped(tap: Tap) -> None:
    assert tap.capture([10**400]) == 1
    assert tap.drops() == {"unsupported_dtype": 1}


def test_read_only_and_unaligned_and_oddly_strided_arrays_are_read(tap: Tap) -> None:
    read_only = np.arange(5.0)
    read_only.flags.writeable = False
    unaligned = np.frombuffer(b"x" + np.arange(5.0).tobytes(), np.float64, offset=1)
    packed = np.zeros(5, [("a", "<f4"), ("b", "i1")])
    packed["a"] = np.arange(5)
    brain = np.zeros(5, [("a", ml_dtypes.bfloat16), ("b", "i1")])
    brain["a"] = np.arange(5).astype(ml_dtypes.bfloat16)
    for values in (read_only, unaligned, packed["a"], brain["a"], np.zeros((0, 3)), np.array(3.0)):
        captured = tap.one(values)
        assert np.array_equal(captured.value(0), values)
        check_statistics(captured.rows[0]["stats"], values)


def test_other_buffers_are_read(tap: Tap) -> None:
    assert np.array_equal(tap.one(array.array("d", [1, 2, 3])).value(0), [1.0, 2.0, 3.0])
    assert np.array_equal(tap.one(bytearray(b"abc")).value(0), [97, 98, 99])
    assert np.array_equal(tap.one(memoryview(np.arange(12)).cast("B").cast("q", (3, 4))).value(0), np.arange(12).reshape(3, 4))


class Exporter:
    """Only __dlpack__. Counts what it was asked."""

    def __init__(self, values: Array, *, versioned: bool = True, device: tuple[int, int] = (1, 0)) -> None:
        self.values = values
        self.versioned = versioned
        self.device = device
        self.exports = 0

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.exports += 1
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack_exports_are_taken_and_given_back_after_the_capture(tap: Tap, versioned: bool) -> None:
    values = np.arange(12.0).reshape(3, 4)[:, ::2]
    before = sys.getrefcount(values)
    exporter = Exporter(values, versioned=versioned)
    assert np.array_equal(tap.one(exporter).value(0), values)
    assert exporter.exports == 1
    assert sys.getrefcount(values) == before + 1  # the exporter's own


def test_an_export_on_another_device_is_never_asked_for(tap: Tap) -> None:
    exporter = Exporter(np.ones(3), device=(2, 0))
    assert tap.capture([exporter]) == 1
    assert exporter.exports == 0
    assert tap.drops() == {"unsupported_device": 1}


def test_pinned_host_memory_counts_as_host_memory(tap: Tap) -> None:
    assert tap.capture([Exporter(np.ones(3), device=(3, 0))]) == 0


class Failing:
    """Raises from its export."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __dlpack__(self, **options: Any) -> Any:
        raise self.error


def test_an_export_that_raises_is_counted_and_the_error_goes_no_further(tap: Tap) -> None:
    assert tap.capture([Failing(ValueError("broken")), torch.ones(1)]) == 1
    assert tap.drops() == {"unreadable": 1}
    assert len(tap.take().rows) == 2


def test_an_interrupt_during_an_export_is_passed_on_after_the_capture(tap: Tap) -> None:
    with pytest.raises(KeyboardInterrupt):
        tap.capture([Failing(KeyboardInterrupt()), torch.ones(1)])
    assert [int(row["status"]) for row in tap.take().rows] == [SKIPPED, OK]
    assert tap.capture([torch.ones(1)]) == 0


def test_types_made_on_the_fly_are_each_looked_at_anew(tap: Tap) -> None:
    for i in range(1500):  # more types than are remembered; their addresses are reused
        made = type(f"Export{i}", (Exporter,), {}) if i % 2 else type(f"Plain{i}", (), {})
        value = made(np.full(2, float(i))) if i % 2 else made()
        assert tap.capture([value], STATISTICS) == (i + 1) % 2
        if i % 2:
            assert tap.take().rows[-1]["stats"]["max"] == i
    gc.collect()


def test_an_export_may_capture_itself(tap: Tap) -> None:
    class Nested(Exporter):
        def __dlpack__(self, **options: Any) -> Any:
            tap.capture([torch.full((2,), 7.0)], step=2)
            return super().__dlpack__(**options)

    assert tap.capture([torch.ones(3), Nested(np.arange(3.0)), torch.ones(3)]) == 0
    captured = tap.take()
    assert [captured.value(i).tolist() for i in range(4)] == [[7, 7], [1, 1, 1], [0, 1, 2], [1, 1, 1]]


def test_an_export_may_empty_the_list_that_is_being_captured(tap: Tap) -> None:
    tensors: list[object] = []

    class Emptying(Exporter):
        def __dlpack__(self, **options: Any) -> Any:
            tensors.clear()
            gc.collect()
            return super().__dlpack__(**options)

    tensors += [Emptying(np.zeros(3)), *(torch.full((100,), float(i)) for i in range(1, 50))]
    assert tap.capture(tensors) == 0
    assert [int(row["stats"]["max"]) for row in tap.take().rows] == list(range(50))


def test_tensors_live_until_the_capture_ends_and_no_longer(tap: Tap) -> None:
    tensors = [torch.randn(100) for _ in range(10)]
    gone = [weakref.ref(tensor) for tensor in tensors]
    tap.capture(tensors)
    tap.capture([tensors[0].conj(), np.arange(3), np.arange(3).astype(ml_dtypes.bfloat16)])
    del tensors
    gc.collect()
    assert all(reference() is None for reference in gone)


# ---- Rows ------------------------------------------------------------------------------------------


def test_none_is_an_absent_row_and_no_loss(tap: Tap) -> None:
    assert tap.capture([None, torch.ones(1)]) == 0
    captured = tap.take()
    assert [int(row["status"]) for row in captured.rows] == [ABSENT, OK]
    assert tap.drops() == {}


def test_flags_are_per_tensor(tap: Tap) -> None:
    ids = np.array([tap.ring.intern(f"t{i}", 1) for i in range(4)], np.uint32)
    tensors = [torch.ones(2)] * 4
    assert tap.ring.capture(tensors, ids, bytes([0, PAYLOAD, STATISTICS, BOTH]), 1, 1, 1) == 0
    captured = tap.take()
    assert [payload is not None for payload in captured.payloads] == [False, True, False, True]
    assert captured.rows["has_stats"].tolist() == [0, 0, 1, 1]


def test_rows_say_when_and_in_what_order(tap: Tap) -> None:
    ids = np.array([tap.ring.intern("a", 1), tap.ring.intern("b", 3)], np.uint32)
    tap.ring.capture([1, 2], ids, bytes([2, 2]), 40, 2, 7, call=3)
    tap.ring.capture([3, 4], ids, bytes([2, 2]), 40, 2, 7)
    tap.ring.capture([5, 6], ids, bytes([2, 2]), 41, 1, 8)
    rows = tap.take().rows
    assert rows["step"].tolist() == [40] * 4 + [41] * 2
    assert rows["seq"].tolist() == [0, 1, 2, 3, 0, 1]
    assert rows["call"].tolist() == [3, 3, 0, 0, 0, 0]
    assert rows["mode"].tolist() == [2] * 4 + [1] * 2
    assert rows["mode_step"].tolist() == [7] * 4 + [8] * 2
    assert rows["name"].tolist() == ids.tolist() * 3
    assert rows["stats"]["max"].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_tensor_without_a_name_is_counted_and_has_no_row(tap: Tap) -> None:
    assert tap.ring.capture([torch.ones(4), 1], np.array([NO_NAME, NO_NAME], np.uint32), bytes([3, 3]), 1, 1, 1) == 2
    assert tap.ring.counters()["drops"]["names_full"] == {"tensors": 2, "bytes": 24}
    assert len(tap.take().rows) == 0


def test_a_full_ring_drops_what_does_not_fit_and_counts_each_tensor_once() -> None:
    tap = Tap(data_bytes=1 << 16, policy="drop")
    lost = sum(tap.capture([torch.ones(1000)]) for _ in range(50))
    counters = tap.ring.counters()
    assert counters["drops"]["ring_full"] == {"tensors": lost, "bytes": lost * 4000}
    assert counters["captures"] == 50
    assert counters["tensors"] == 50 - lost == len(tap.take().rows)
    assert counters["payload_bytes"] == (50 - lost) * 4000
    tap.ring.close()


def test_policy_degrade_keeps_statistics_when_the_payload_has_no_room() -> None:
    tap = Tap(data_bytes=1 << 16, policy="degrade")
    lost = sum(tap.capture([torch.ones(1000)], PAYLOAD) for _ in range(13))
    captured = tap.take()
    degraded = [row for row in captured.rows if row["reason"]]
    assert degraded
    assert all(row["status"] == OK and row["has_stats"] and row["stats"]["count"] == 1000 for row in degraded)
    drops = tap.drops()
    assert drops["degraded"] == len(degraded)
    assert sum(drops.values()) == lost
    tap.ring.close()


def test_policy_block_waits_for_the_consumer_without_holding_the_gil() -> None:
    tap = Tap(data_bytes=1 << 16)
    ring = _core.Ring(data_bytes=1 << 16, slots=256, policy="block", block_timeout_seconds=60)
    consumer = _core.Consumer(ring.fd)
    ids = np.array([ring.intern("t", 1)], np.uint32)
    lost: list[int] = []
    thread = threading.Thread(target=lambda: lost.extend(ring.capture([torch.ones(1000)], ids, b"\3", i, 1, i) for i in range(100)))
    thread.start()
    rows = 0
    while rows < 100:
        drained = consumer.drain(1 << 20, 10)
        rows += len(np.frombuffer(drained.rows, ROW))
        consumer.release(drained)
    thread.join()
    assert sum(lost) == 0
    assert len(lost) == 100
    ring.close()
    tap.ring.close()


def test_threads_share_a_ring_and_lose_nothing(tap: Tap) -> None:
    def work(value: float) -> None:
        ids = np.array([0] * 8, np.uint32)
        tensors = [torch.full((500 + i,), value) for i in range(8)]
        for _ in range(20):
            assert tap.ring.capture(tensors, ids, bytes([BOTH] * 8), 1, 1, 1) == 0

    tap.ring.intern("t", 1)
    threads = [threading.Thread(target=work, args=(float(i + 1),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    captured = tap.take()
    assert len(captured.rows) == 4 * 20 * 8
    assert sorted(captured.rows["seq"].tolist()) == list(range(640))
    for i, row in enumerate(captured.rows):
        assert np.all(captured.value(i) == row["stats"]["max"])


def test_the_same_values_give_the_same_statistics_alone_and_while_copying(tap: Tap) -> None:
    tensor = torch.randn(777, 501)
    tap.capture([tensor, tensor], STATISTICS)
    alone = tap.take().rows["stats"]
    tap.capture([tensor, tensor.T.contiguous().T], BOTH)
    copied = tap.take().rows["stats"]
    assert alone[0].tobytes() == alone[1].tobytes() == copied[0].tobytes() == copied[1].tobytes()


def test_after_close_a_capture_does_nothing(tap: Tap) -> None:
    tap.ring.close()
    assert tap.ring.capture([torch.ones(1)], np.zeros(1, np.uint32), b"\3", 1, 1, 1) == 0


# ---- Arguments ----------------------------------------------------------------------------------------


def test_lists_that_do_not_fit_together_are_refused(tap: Tap) -> None:
    one = np.zeros(1, np.uint32)
    with pytest.raises(ValueError, match=r"names must hold one number per tensor: 2 of 4 bytes .* got 1 of 4 bytes"):
        tap.ring.capture([1, 2], one, bytes(2), 1, 1, 1)
    with pytest.raises(ValueError, match=r"names must hold .* got 1 of 8 bytes"):
        tap.ring.capture([1], np.zeros(1, np.uint64), bytes(1), 1, 1, 1)
    with pytest.raises(ValueError, match=r"flags must hold one number per tensor: 1 of 1 bytes .* got 3 of 1 bytes"):
        tap.ring.capture([1], one, bytes(3), 1, 1, 1)
    with pytest.raises(TypeError, match=r"names must be a contiguous buffer .* got list"):
        tap.ring.capture([1], [0], bytes(1), 1, 1, 1)
    with pytest.raises(ValueError, match=r"mode must be 1 .* got 5"):
        tap.ring.capture([1], one, bytes(1), 1, 5, 1)
    with pytest.raises(TypeError, match="tensors must be a sequence"):
        tap.ring.capture(5, one, bytes(1), 1, 1, 1)
    assert tap.ring.counters()["captures"] == 0


# ---- stats() --------------------------------------------------------------------------------------------


def test_stats_gives_one_record_per_tensor_in_order() -> None:
    tensors = [torch.arange(10.0), np.arange(6).reshape(2, 3).T, 3, torch.randn(5).bfloat16()]
    found = np.frombuffer(_core.stats(tensors), STATS)
    assert len(found) == 4
    check_statistics(found[0], np.arange(10.0))
    check_statistics(found[1], np.arange(6.0))
    assert found[2]["mean"] == 3
    assert _core.stats([]) == b""


def test_stats_do_not_depend_on_the_number_of_threads() -> None:
    tensor = torch.randn(3_000_001)
    assert _core.stats([tensor], threads=1) == _core.stats([tensor], threads=3)


@pytest.mark.parametrize(
    ("value", "why"),
    [("text", r"tensors\[1\] \(str\).*gave no tensor"), (None, r"tensors\[1\] \(NoneType\)"), (torch.eye(2).to_sparse(), "no strides"),
     (torch.ones(2, dtype=torch.complex64), "no statistics for its dtype"), (torch.ones(2, device="meta"), "no local bytes"),
     (Failing(ValueError("broken")), "broken"), (Exporter(np.ones(1), device=(2, 0)), "not in host memory; pass")],
)  # fmt: skip
def test_stats_name_the_object_they_cannot_read_and_say_what_to_do(value: object, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        _core.stats([torch.ones(1), value])


def test_stats_refuse_a_silly_number_of_threads() -> None:
    with pytest.raises(ValueError, match="threads must be 1 to 64, got 0"):
        _core.stats([], threads=0)
