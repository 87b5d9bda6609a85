"""Ring.capture() and stats() of arrays, buffers, numbers and DLPack exports instead of PyTorch tensors."""

from __future__ import annotations

import array
import gc
import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tdcore import _core
from tests.capturing import (
    NUMPY_OF,
    OK,
    SKIPPED,
    STATISTICS,
    STATS,
    Exporter,
    Failing,
    Tap,
    check_statistics,
)


@pytest.fixture
def tap() -> Iterator[Tap]:
    tap = Tap()
    yield tap
    tap.ring.close()


# ---- Arrays, numbers and other producers ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "BOOL"),
        (False, "BOOL"),
        (-3, "I64"),
        (2.5, "F64"),
        (float("nan"), "F64"),
        (2**70, "F64"),
        (1 + 2j, "C128"),
        (np.float32(1.5), "F32"),
        (np.float64(1.5), "F64"),
        (np.int8(-1), "I8"),
        (np.bool_(True), "BOOL"),
        (np.uint64(2**64 - 1), "U64"),
        (np.float16(2), "F16"),
        (np.longdouble(3), "F64"),
        (ml_dtypes.bfloat16(1.5), "F64"),
    ],
)
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
    assert np.array_equal(
        tap.one(memoryview(np.arange(12).tobytes()).cast("q", (3, 4))).value(0), np.arange(12).reshape(3, 4)
    )


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack_exports_are_taken_and_given_back_after_the_capture(tap: Tap, versioned: bool) -> None:
    values = np.arange(12.0).reshape(3, 4)[:, ::2]
    before = sys.getrefcount(values)
    exporter = Exporter(values, versioned=versioned)
    assert np.array_equal(tap.one(exporter).value(0), values)
    assert exporter.exports == 1
    assert sys.getrefcount(values) == before + 1  # the reference of the exporter itself


def test_an_export_on_another_device_is_never_asked_for(tap: Tap) -> None:
    exporter = Exporter(np.ones(3), device=(2, 0))
    assert tap.capture([exporter]) == 1
    assert exporter.exports == 0
    assert tap.drops() == {"unsupported_device": 1}


def test_pinned_host_memory_counts_as_host_memory(tap: Tap) -> None:
    assert tap.capture([Exporter(np.ones(3), device=(3, 0))]) == 0


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
    for i in range(1500):  # more types than the cache has entries; addresses of types are reused
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
    [
        ("text", r"tensors\[1\] \(str\).*is not a tensor"),
        (None, r"tensors\[1\] \(NoneType\)"),
        (torch.eye(2).to_sparse(), "no strides"),
        (torch.ones(2, dtype=torch.complex64), "its dtype has no statistics"),
        (torch.ones(2, device="meta"), "no local storage"),
        (Failing(ValueError("broken")), "broken"),
        (Exporter(np.ones(1), device=(2, 0)), "not in host memory; pass"),
    ],
)
def test_stats_name_the_object_they_cannot_read_and_say_what_to_do(value: object, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        _core.stats([torch.ones(1), value])


def test_stats_refuse_a_silly_number_of_threads() -> None:
    with pytest.raises(ValueError, match="threads must be 1 to 64, got 0"):
        _core.stats([], threads=0)
