"""Ring.capture() of PyTorch tensors: any layout, with gradient history, or without storage."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tdcore import _core
from tests.capturing import OK, PAYLOAD, SKIPPED, Tap, check_statistics


@pytest.fixture
def tap() -> Iterator[Tap]:
    tap = Tap()
    yield tap
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
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int8,
        torch.int64,
        torch.uint8,
        torch.bool,
    ],
)
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
    torch.autograd.backward(inner.sum())
    expected = torch.autograd.grad((weight @ weight).relu().sum(), weight)[0]
    assert torch.equal(torch.as_tensor(weight.grad), expected)
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

    def hook(gradient: torch.Tensor) -> None:
        seen.append(gradient)
        tap.capture([gradient])

    doubled.register_hook(hook)
    torch.autograd.backward(doubled.sum())
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
    """A tensor without its own storage, like DTensor."""

    @staticmethod
    def __new__(cls) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, (3,), dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, *arguments: Any) -> Any:
        raise RuntimeError("no operator may be called by a capture")


SPECIAL: dict[str, tuple[str, Callable[[], object]]] = {
    "meta": ("no_storage", lambda: torch.ones(3, device="meta")),
    "fake": ("no_storage", fake_tensor),
    "wrapper": ("no_storage", Wrapper),
    "uninitialised": ("no_storage", torch.nn.parameter.UninitializedParameter),
    "resized": ("no_storage", resized_to_nothing),
    "zero_tensor": ("no_storage", lambda: torch._efficientzerotensor(3)),
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
@pytest.mark.filterwarnings("ignore")  # prototype features warn at first use
def test_layouts_without_strides_count_as_sparse(
    tap: Tap, make: Callable[[torch.Tensor], torch.Tensor]
) -> None:
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
    """The attributes of a torch tensor without DLPack's exchange table, as in PyTorch before 2.10."""

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
    assert (
        tap.capture([OldTensor(torch.eye(2).to_sparse()), OldTensor(torch.ones(2).to(torch.float8_e4m3fnuz))])
        == 2
    )
    assert tap.drops() == {"unsupported_device": 1, "no_storage": 1, "sparse": 1, "unsupported_dtype": 1}


def test_an_older_torch_resolves_lazy_bits_too(tap: Tap) -> None:
    tensor = torch.randn(4, dtype=torch.complex64).conj()
    assert np.array_equal(tap.one(OldTensor(tensor), PAYLOAD).value(0), tensor.resolve_conj().numpy())
    assert np.array_equal(tap.one(OldTensor(tensor.imag)).value(0), tensor.imag.resolve_neg().numpy())
