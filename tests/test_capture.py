"""Ring.capture(): tensors become rows and bytes, unchanged, and lost tensors are counted."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore import _core
from tests.capturing import (
    ABSENT,
    BOTH,
    CODES,
    NO_NAME,
    NUMPY_OF,
    OK,
    PAYLOAD,
    ROW,
    SKIPPED,
    STATISTICS,
    Array,
    Tap,
    check_statistics,
)


@pytest.fixture
def tap() -> Iterator[Tap]:
    tap = Tap()
    yield tap
    tap.ring.close()


@st.composite
def strided_arrays(draw: st.DrawFn) -> Array:
    """An array of any dtype, then views of it: permuted, sliced, flipped, expanded, broadcast to size 0."""
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
        steps = st.sampled_from(
            [slice(None), slice(None, None, -1), slice(1, None, 2), slice(None, None, -3)]
        )
        view = view[tuple(draw(steps) for _ in range(view.ndim))]
    if draw(st.booleans()):
        view = np.broadcast_to(view, (draw(st.integers(0, 3)), *view.shape))
    return np.asarray(view)


@settings(deadline=None)
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
            if flags == STATISTICS:
                assert row["stats"].tobytes() == _core.stats([view])
    finally:
        tap.ring.close()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("data_bytes", [1 << 16, 1 << 23])
def test_a_tensor_larger_than_a_record_comes_in_parts_that_make_it_whole(
    data_bytes: int, transposed: bool
) -> None:
    tap = Tap(data_bytes=data_bytes)
    rows = tap.ring.max_record_bytes // 4 // 100
    tensor = torch.randn(rows, 333).T if transposed else torch.randn(333, rows)
    tap.capture([tensor])
    captured = tap.take()
    assert len(captured.rows) > 1
    assert [int(row["part"]) for row in captured.rows] == list(range(len(captured.rows)))
    assert all(row["parts"] == len(captured.rows) for row in captured.rows)
    parts = [np.frombuffer(payload or b"", np.float32) for payload in captured.payloads]
    assert [int(row["element_offset"]) for row in captured.rows] == [
        0,
        *np.cumsum([len(p) for p in parts])[:-1],
    ]
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


def test_an_absent_row_has_the_reason_in_the_upper_half_of_its_flags(tap: Tap) -> None:
    assert _core.ABSENT_REASONS == {
        1: "no_backward",
        2: "not_stepped",
        3: "cleared",
        4: "accumulated",
        5: "scaler_skipped",
        6: "unknown",
    }
    flags = bytes([BOTH | code << 4 for code in (0, 1, 6, 15, 3)])
    ids = np.array([tap.ring.intern(f"t{i}", 1) for i in range(5)], np.uint32)
    assert tap.ring.capture([None, None, None, None, torch.ones(1)], ids, flags, 1, 1, 1) == 0
    rows = tap.take().rows
    assert rows["status"].tolist() == [ABSENT] * 4 + [OK]
    assert rows["reason"].tolist() == [0, 1, 6, 6, 0]  # not defined: unknown; of a tensor: not used


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


def test_a_step_that_is_resumed_goes_on_with_its_order(tap: Tap) -> None:
    for step in (10, 11, 12, 10, 12):
        tap.capture([1, 2], step=step)
    assert tap.take().rows["seq"].tolist() == [0, 1, 0, 1, 0, 1, 2, 3, 2, 3]


def test_a_tensor_without_a_name_is_counted_and_has_no_row(tap: Tap) -> None:
    assert (
        tap.ring.capture([torch.ones(4), 1], np.array([NO_NAME, NO_NAME], np.uint32), bytes([3, 3]), 1, 1, 1)
        == 2
    )
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
    lost = sum(tap.capture([torch.ones(1000)], PAYLOAD) for _ in range(20))
    captured = tap.take()
    degraded = [row for row in captured.rows if row["reason"]]
    assert degraded
    assert all(row["status"] == OK and row["has_stats"] and row["stats"]["count"] == 1000 for row in degraded)
    drops = tap.drops()
    assert drops["degraded"] == len(degraded)
    assert sum(drops.values()) == lost
    tap.ring.close()


def test_policy_block_waits_for_the_consumer_without_holding_the_gil() -> None:
    ring = _core.Ring(data_bytes=1 << 16, slots=256, policy="block", block_timeout_seconds=60)
    consumer = _core.Consumer(ring.fd)
    ids = np.array([ring.intern("t", 1)], np.uint32)
    lost: list[int] = []
    thread = threading.Thread(
        target=lambda: lost.extend(ring.capture([torch.ones(1000)], ids, b"\3", i, 1, i) for i in range(100))
    )
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
    with pytest.raises(
        ValueError, match=r"names must hold one number per tensor: 2 of 4 bytes .* got 1 of 4 bytes"
    ):
        tap.ring.capture([1, 2], one, bytes(2), 1, 1, 1)
    with pytest.raises(ValueError, match=r"names must hold .* got 1 of 8 bytes"):
        tap.ring.capture([1], np.zeros(1, np.uint64), bytes(1), 1, 1, 1)
    with pytest.raises(
        ValueError, match=r"flags must hold one number per tensor: 1 of 1 bytes .* got 3 of 1 bytes"
    ):
        tap.ring.capture([1], one, bytes(3), 1, 1, 1)
    with pytest.raises(TypeError, match=r"names must be a contiguous buffer .* got list"):
        tap.ring.capture([1], [0], bytes(1), 1, 1, 1)
    with pytest.raises(ValueError, match=r"mode must be 1 .* got 5"):
        tap.ring.capture([1], one, bytes(1), 1, 5, 1)
    with pytest.raises(TypeError, match="tensors must be a sequence"):
        tap.ring.capture(5, one, bytes(1), 1, 1, 1)
    assert tap.ring.counters()["captures"] == 0
