"""The flusher: the files that it writes, the errors that it survives, its messages when it cannot write."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tdcore import _core
from tdcore.flusher import Flusher, FlusherOptions
from tdcore.format.layout import COLLECTIONS_KEY, INDEX_SCHEMA, data_prefix, index_prefix, stop_key
from tdcore.sinks import MemorySink
from tests.flushing import (
    MIB,
    WANT_STATS,
    FlusherThread,
    Trainer,
    flush_all,
    payloads,
    read_end,
    read_index,
    refuse,
    segment_tensors,
    weights,
)
from tests.waiting import wait_until


def test_every_tensor_becomes_a_row_that_points_to_its_bytes(trainer: Trainer, sink: MemorySink) -> None:
    for step in range(5):
        assert trainer.capture(step, weights(step)) == 0
    assert flush_all(trainer, sink)
    table = read_index(sink)
    assert table.num_rows == 15
    assert table["step"].to_pylist() == [step for step in range(5) for _ in range(3)]
    assert table["seq"].to_pylist() == [0, 1, 2] * 5
    found = payloads(sink, table)
    for step in range(5):
        for name, value in weights(step).items():
            assert found[name, step, 0] == value.tobytes()
    assert trainer.pending() == 0


def test_the_columns_of_an_index_file_are_those_of_the_format(trainer: Trainer, sink: MemorySink) -> None:
    trainer.capture(
        3, {"w": np.array([[-2.0, 0.5, np.nan], [0.0, np.inf, 1.0]], dtype=np.float32)}, kind=3, mode=2
    )
    flush_all(trainer, sink)
    table = read_index(sink)
    assert table.schema.equals(INDEX_SCHEMA)
    (row,) = table.to_pylist()
    expected = {
        "attempt": 0, "worker": "worker_0", "ticket": 0, "mode": "EVAL", "mode_step": 3, "step": 3, "seq": 0,
        "name": "w", "kind": "gradient", "origin": "Linear", "call": 0, "dtype": "F32", "shape": [2, 3],
        "part": 0, "parts": 1, "element_offset": 0, "elements": 6, "shard": None, "status": "ok",
        "reason": None, "nbytes": 24, "count": 6, "nan_count": 1, "pos_inf_count": 1, "neg_inf_count": 0,
        "zero_count": 1, "subnormal_count": 0, "min": -2.0, "max": 1.0, "abs_sum": 3.5, "square_sum": 5.25,
        "abs_min": 0.0, "abs_max": 2.0, "mean": -0.125, "log2_first": -1, "log2_counts": [1, 1, 1],
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert abs(row["time_ns"] - time.time_ns()) < 3600 * 10**9


def test_an_absent_value_has_neither_shape_nor_statistics(trainer: Trainer, sink: MemorySink) -> None:
    trainer.capture(0, {"w": None})
    flush_all(trainer, sink)
    (row,) = read_index(sink).to_pylist()
    assert (row["status"], row["reason"]) == ("absent", None)
    for column in (
        "dtype",
        "shape",
        "segment",
        "offset",
        "nbytes",
        "crc32c",
        "count",
        "min",
        "log2_first",
        "log2_counts",
    ):
        assert row[column] is None, column


def test_an_absent_row_is_stored_with_its_reason(trainer: Trainer, sink: MemorySink) -> None:
    ring = trainer.ring
    names = np.array([ring.intern(f"gradient/{at}", 2) for at in range(4)], dtype=np.uint32)
    ring.capture([None, None, None, object()], names, bytes([3, 3 | 2 << 4, 3 | 5 << 4, 3]), 1, 1, 1)
    flush_all(trainer, sink)
    table = read_index(sink)
    assert table.column("status").to_pylist() == ["absent", "absent", "absent", "skipped"]
    assert table.column("reason").to_pylist() == [None, "not_stepped", "scaler_skipped", "unreadable"]


def test_a_tensor_without_finite_values_has_an_empty_histogram(trainer: Trainer, sink: MemorySink) -> None:
    trainer.capture(
        0, {"w": np.array([np.nan, np.inf], dtype=np.float32), "zero": np.zeros(3, dtype=np.float32)}
    )
    flush_all(trainer, sink)
    nan, zero = read_index(sink).to_pylist()
    assert (nan["log2_first"], nan["log2_counts"], nan["count"]) == (None, [], 2)
    assert np.isnan(nan["min"])
    assert (zero["log2_first"], zero["log2_counts"], zero["zero_count"], zero["min"]) == (None, [], 3, 0.0)


def test_statistics_alone_make_no_segment(trainer: Trainer, sink: MemorySink) -> None:
    trainer.capture(0, weights(0), flags=WANT_STATS)
    flush_all(trainer, sink)
    assert sink.list(data_prefix("worker_0")) == []
    assert {row["segment"] for row in read_index(sink).to_pylist()} == {None}


def test_a_segment_is_a_safetensors_file_that_others_can_read(trainer: Trainer, sink: MemorySink) -> None:
    values: dict[str, Any] = {
        "a": np.arange(6, dtype=np.float64).reshape(2, 3),
        "b": np.arange(5, dtype=np.int16),
    }
    trainer.capture(7, values)
    flush_all(trainer, sink)
    tensors = segment_tensors(sink)
    assert sorted(tensors) == ["a@7", "b@7"]
    for name, value in values.items():
        np.testing.assert_array_equal(tensors[f"{name}@7"], value)


def test_a_large_tensor_comes_in_parts_that_join_to_the_whole(trainer: Trainer, sink: MemorySink) -> None:
    value = np.random.default_rng(0).standard_normal(700_000).astype(np.float32)
    trainer.capture(0, {"big": value})
    flush_all(trainer, sink)
    table = read_index(sink)
    assert table["parts"].to_pylist() == [table.num_rows] * table.num_rows
    assert set(table["shape"].to_pylist()[0]) == {700_000}
    found = payloads(sink, table)
    assert b"".join(found["big", 0, part] for part in range(table.num_rows)) == value.tobytes()


def test_many_rows_fit_into_one_index_file(sink: MemorySink) -> None:
    trainer = Trainer(data_bytes=128 * MIB)
    trainer.capture(0, {f"t{at}": np.zeros(1, dtype=np.float32) for at in range(40_000)}, flags=WANT_STATS)
    flush_all(trainer, sink)
    table = read_index(sink)
    assert table.num_rows == 40_000
    assert table["name"].to_pylist() == [f"t{at}" for at in range(40_000)]


def test_index_files_are_zstd_and_keep_minima_only_where_readers_use_them(
    trainer: Trainer, sink: MemorySink
) -> None:
    trainer.capture(0, weights(0))
    flush_all(trainer, sink)
    metadata = pq.read_metadata(pa.BufferReader(sink.get(sink.list(index_prefix("worker_0"))[0])))
    columns = [metadata.row_group(0).column(at) for at in range(metadata.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    with_statistics = {column.path_in_schema for column in columns if column.is_stats_set}
    assert with_statistics == {"step", "name", "ticket"}


def test_rows_become_visible_while_the_training_runs(trainer: Trainer, sink: MemorySink) -> None:
    flusher = FlusherThread(trainer, sink)
    for step in range(3):
        trainer.capture(step, weights(step))
        wait_until(lambda: trainer.pending() == 0)
        assert read_index(sink).num_rows == 3 * (step + 1)
    trainer.ring.set_closing()
    assert flusher.join()
    assert read_index(sink).num_rows == 9


def test_records_wait_together_for_the_visible_delay(trainer: Trainer, sink: MemorySink) -> None:
    clock = [100.0]
    options = FlusherOptions(visible_delay=timedelta(seconds=1))
    consumer = _core.Consumer(trainer.ring.fd)
    flusher = Flusher(consumer, sink, worker="worker_0", attempt=0, options=options, clock=lambda: clock[0])
    files: list[int] = []
    steps = iter(range(100))

    def wait(seconds: float) -> None:
        trainer.capture(next(steps), weights(0))
        clock[0] += 0.1
        files.append(len(sink.list(index_prefix("worker_0"))))
        if len(files) == 35:
            trainer.ring.set_closing()

    flusher.run(wait=wait)
    assert files[9] == 0
    assert 2 <= files[-1] <= 4


def test_a_ring_that_fills_is_written_before_its_time(sink: MemorySink) -> None:
    trainer = Trainer(data_bytes=MIB)
    flusher = FlusherThread(trainer, sink, options=FlusherOptions(visible_delay=timedelta(hours=1)))
    for step in range(40):
        assert trainer.capture(step, {"w": np.full(25_000, step, dtype=np.float32)}) == 0
    trainer.ring.set_closing()
    assert flusher.join()
    assert read_index(sink).num_rows == 40


def test_slots_that_run_out_are_written_before_their_time(sink: MemorySink) -> None:
    trainer = Trainer(slots=16)
    flusher = FlusherThread(trainer, sink, options=FlusherOptions(visible_delay=timedelta(hours=1)))
    for step in range(200):
        assert trainer.capture(step, weights(step), flags=WANT_STATS) == 0
    trainer.ring.set_closing()
    assert flusher.join()
    assert read_index(sink).num_rows == 600


def test_documents_are_written_and_the_last_one_wins(trainer: Trainer, sink: MemorySink) -> None:
    flusher = FlusherThread(trainer, sink)
    assert trainer.ring.put_document(COLLECTIONS_KEY, b"first")
    wait_until(lambda: sink.objects.get(COLLECTIONS_KEY) == b"first")
    assert trainer.ring.put_document(COLLECTIONS_KEY, b"second")
    assert trainer.ring.put_document("../evil", b"x")
    trainer.ring.set_closing()
    assert flusher.join()
    assert sink.objects[COLLECTIONS_KEY] == b"second"
    assert "../evil" not in sink.objects


def test_a_run_that_captured_nothing_has_only_an_end(trainer: Trainer, sink: MemorySink) -> None:
    assert flush_all(trainer, sink)
    assert sink.list("") == ["end/worker_0/0000.json"]
    end = read_end(sink)
    assert (end["clean"], end["last_step"], end["totals"]["rows"], end["gaps"], end["drops"]) == (
        True,
        -1,
        0,
        [],
        {},
    )


def test_the_end_says_what_was_written(trainer: Trainer, sink: MemorySink) -> None:
    for step in range(4):
        trainer.capture(step, weights(step))
    trainer.capture(9, weights(9), mode=2, flags=WANT_STATS)
    flush_all(trainer, sink)
    end = read_end(sink)
    assert (end["format"], end["worker"], end["attempt"], end["clean"]) == (1, "worker_0", 0, True)
    assert end["last_step"] == 9
    assert end["last_mode_steps"] == {"TRAIN": 3, "EVAL": 9}
    assert end["totals"]["rows"] == 15
    assert end["totals"]["records"] == 5
    assert end["totals"]["payload_bytes"] == 4 * 3 * 400
    assert end["totals"]["captured_tensors"] == 15
    assert (end["drops"], end["gaps"], end["torn_records"], end["flusher_restarts"]) == ({}, [], 0, 0)


def test_progress_and_heartbeat_reach_the_trainer(trainer: Trainer, sink: MemorySink) -> None:
    flusher = FlusherThread(trainer, sink)
    trainer.capture(5, weights(5))
    wait_until(lambda: trainer.ring.progress()["rows"] == 3)
    progress = trainer.ring.progress()
    assert (progress["records"], progress["bytes"], progress["last_step"], progress["error"]) == (
        1,
        1200,
        5,
        None,
    )
    beat = progress["heartbeat_ns"]
    wait_until(lambda: trainer.ring.progress()["heartbeat_ns"] > beat)
    trainer.ring.set_closing()
    flusher.join()


@pytest.mark.parametrize(
    ("text", "passed_on"),
    [
        ('{"reason": "enough"}', '{"reason": "enough"}'),
        ("", '{"reason": "stop requested"}'),
        ("x" * 9000, '{"reason": "stop requested"}'),
    ],
    ids=["plain", "empty", "too long"],
)
def test_a_stop_request_reaches_the_trainer(
    trainer: Trainer, sink: MemorySink, text: str, passed_on: str
) -> None:
    flusher = FlusherThread(trainer, sink)
    sink.put(stop_key(1), [b"for another attempt"])
    sink.put(stop_key(0), [text.encode()])
    wait_until(lambda: trainer.ring.stop_request() is not None)
    assert trainer.ring.stop_request() == passed_on
    trainer.ring.set_closing()
    flusher.join()


def test_a_stop_request_is_seen_while_the_sink_refuses_to_write(trainer: Trainer, sink: MemorySink) -> None:
    sink.fault = refuse("full")
    flusher = FlusherThread(trainer, sink)
    trainer.capture(0, weights(0))
    wait_until(lambda: trainer.ring.progress()["error"])
    sink.objects[stop_key(0)] = b'{"reason": "enough"}'
    wait_until(lambda: trainer.ring.stop_request() is not None)
    sink.fault = None
    trainer.ring.set_closing()
    assert flusher.join()


def test_statistics_are_stored_with_their_bytes_split_and_counts_as_differences(
    trainer: Trainer, sink: MemorySink
) -> None:
    rng = np.random.default_rng(0)
    for step in range(50):
        trainer.capture(step, {f"t{i}": rng.standard_normal(100) for i in range(20)}, flags=WANT_STATS)
    flush_all(trainer, sink)
    (key,) = sink.list(index_prefix("worker_0"))
    group = pq.ParquetFile(pa.BufferReader(sink.get(key))).metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    encodings = {column.path_in_schema: column.encodings for column in columns}
    assert "BYTE_STREAM_SPLIT" in encodings["mean"]
    assert "DELTA_BINARY_PACKED" in encodings["log2_counts.list.element"]
    assert "RLE_DICTIONARY" in encodings["name"]
