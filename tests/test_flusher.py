"""The flusher: what it writes, what it survives, and what it says when it cannot write."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tdcore import _core
from tdcore.flusher import Flusher, FlusherOptions
from tdcore.flusher.main import TrainerWatch
from tdcore.layout import COLLECTIONS_KEY, INDEX_SCHEMA, RUN_KEY, data_prefix, index_prefix, stop_key
from tdcore.sinks import LocalSink, MemorySink, SinkError
from tests.flushing import (
    MIB,
    QUICK,
    WANT_STATS,
    FlusherThread,
    Trainer,
    flush_all,
    index_ranges,
    payloads,
    read_end,
    read_index,
    segment_tensors,
    spawn_flusher,
    wait_until,
)


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    made = Trainer()
    yield made
    made.ring.close()


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


def weights(step: int, count: int = 3, elements: int = 100) -> dict[str, Any]:
    return {f"fc{at}.weight": np.full(elements, step * 10 + at, dtype=np.float32) for at in range(count)}


def refuse(kind: str, *, operations: tuple[str, ...] = ("put",)) -> Callable[[str, str], None]:
    """A fault for MemorySink.fault: every such operation fails."""

    def fault(operation: str, key: str) -> None:
        if operation in operations:
            raise SinkError(f"cannot {operation} {key}: no", kind=kind)  # type: ignore[arg-type]

    return fault


# What is written


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


# Starting again


def test_a_new_flusher_writes_what_the_last_one_had_not_given_back(
    trainer: Trainer, sink: MemorySink
) -> None:
    for step in range(3):
        trainer.capture(step, weights(step))
    _core.Consumer(trainer.ring.fd).drain(1 << 40, 2)  # took two, wrote nothing, died
    assert flush_all(trainer, sink)
    assert read_index(sink).num_rows == 9
    assert read_end(sink)["flusher_restarts"] == 1


class Killed(BaseException):
    """Ends a flusher in the middle, as a kill would."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("killed_at", range(12))
def test_a_flusher_killed_at_any_write_loses_nothing_and_doubles_nothing(
    trainer: Trainer, sink: MemorySink, killed_at: int, after: bool
) -> None:
    options = FlusherOptions(segment_bytes=3000, merge_fan_in=2, grace=timedelta())
    writes = [0]
    dead = [False]

    class Deadly(MemorySink):
        """Dies at a given write, before or after it took effect."""

        def put(self, key: str, parts: Any) -> None:
            self._write(lambda: sink.put(key, parts))

        def delete(self, key: str) -> None:
            self._write(lambda: sink.delete(key))

        def _write(self, write: Callable[[], None]) -> None:
            assert not dead[0]
            writes[0] += 1
            if writes[0] == killed_at + 1 and not after:
                dead[0] = True
                raise Killed
            write()
            if writes[0] == killed_at + 1:
                dead[0] = True
                raise Killed

        def list(self, prefix: str, after: str = "") -> list[str]:
            return sink.list(prefix, after)

        def get(self, key: str) -> bytes:
            return sink.get(key)

    for step in range(6):
        trainer.capture(step, weights(step))
    trainer.ring.set_closing()
    with pytest.raises(Killed):
        Flusher(
            _core.Consumer(trainer.ring.fd), Deadly(), worker="worker_0", attempt=0, options=options
        ).run()
    assert flush_all(trainer, sink, options=options)
    table = read_index(sink)
    assert sorted(table["step"].to_pylist()) == [step for step in range(6) for _ in range(3)]
    found = payloads(sink, table)
    assert len(found) == 18
    for (name, step, _), data in found.items():
        assert data == weights(step)[name].tobytes()
    named = {row["segment"] for row in table.select(["segment"]).to_pylist()}
    assert {key.rpartition("/")[2] for key in sink.list(data_prefix("worker_0"))} == named
    assert len(sink.list(index_prefix("worker_0"))) == len(index_ranges(sink))
    end = read_end(sink)
    assert (end["totals"]["rows"], end["totals"]["records"], end["totals"]["payload_bytes"]) == (18, 6, 7200)
    assert (end["last_step"], end["gaps"]) == (5, [])


def test_other_attempts_and_workers_are_left_alone(trainer: Trainer, sink: MemorySink) -> None:
    keys = [
        "index/worker_0/0001-000000000000-000000000009.parquet",
        "data/worker_0/0001-000000000000-000000000009.safetensors",
        "data/worker_1/0000-000000000000-000000000009.safetensors",
        "data/worker_0/notes.txt",
    ]
    for key in keys:
        sink.put(key, [b"not mine"])
    _core.Consumer(trainer.ring.fd)
    trainer.capture(0, weights(0))
    flush_all(trainer, sink)
    assert [sink.objects[key] for key in keys] == [b"not mine"] * 4


def test_a_damaged_index_file_of_an_earlier_flusher_does_not_stop_the_next(
    trainer: Trainer, sink: MemorySink
) -> None:
    flusher = FlusherThread(
        trainer, sink, options=FlusherOptions(visible_delay=timedelta(), grace=timedelta(hours=1))
    )
    trainer.capture(0, weights(0))
    wait_until(lambda: trainer.pending() == 0)
    damaged = sink.list(index_prefix("worker_0"))[0]
    sink.objects[damaged] = b"nonsense"
    _core.Consumer(trainer.ring.fd)  # the first one is superseded, and says so
    trainer.capture(1, weights(1))
    with pytest.raises(RuntimeError, match="another consumer"):
        flusher.join()
    assert flush_all(trainer, sink)
    assert sink.objects[damaged] == b"nonsense"
    assert len(sink.list(data_prefix("worker_0"))) >= 2  # the damaged file may name any of them


# A sink that refuses


@pytest.mark.parametrize("kind", ["full", "denied", "transient"])
def test_records_wait_in_the_ring_until_the_sink_works_again(
    trainer: Trainer, sink: MemorySink, kind: str
) -> None:
    sink.fault = refuse(kind)
    flusher = FlusherThread(trainer, sink)
    for step in range(3):
        trainer.capture(step, weights(step))
    wait_until(lambda: trainer.ring.progress()["error"])
    assert "cannot put data/worker_0/" in trainer.ring.progress()["error"]
    sink.fault = None
    wait_until(lambda: trainer.pending() == 0)
    wait_until(lambda: trainer.ring.progress()["error"] is None)
    trainer.ring.set_closing()
    assert flusher.join()
    assert len(payloads(sink, read_index(sink))) == 9
    assert read_end(sink)["drops"] == {}


def test_one_message_is_printed_however_often_the_sink_refuses(
    trainer: Trainer, sink: MemorySink, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = [0]

    def fault(operation: str, key: str) -> None:
        if operation == "put":
            tries[0] += 1
            raise SinkError("the quota is used up", kind="full")

    sink.fault = fault
    flusher = FlusherThread(trainer, sink)
    trainer.capture(0, weights(0))
    wait_until(lambda: tries[0] > 10)
    sink.fault = None
    trainer.ring.set_closing()
    assert flusher.join()
    assert capsys.readouterr().err.count("the quota is used up") == 1
    assert trainer.ring.progress()["errors"] == 1


def test_a_broken_sink_never_holds_up_the_training_and_the_loss_is_exact(sink: MemorySink) -> None:
    trainer = Trainer(data_bytes=MIB)
    sink.fault = refuse("full")
    flusher = FlusherThread(trainer, sink)
    for step in range(100):  # about ten times the ring
        assert trainer.capture(step, weights(step, elements=8000)) == 0
    sink.fault = None
    wait_until(lambda: trainer.pending() == 0)
    for step in range(100, 110):
        trainer.capture(step, weights(step, elements=8000))
    trainer.ring.set_closing()
    assert flusher.join()
    table = read_index(sink)
    assert table.num_rows == 330  # every row is there, with its statistics
    assert table["count"].null_count == 0
    lost = table.filter(pc.equal(table["status"].cast("string"), "lost"))
    assert 0 < lost.num_rows < 300
    assert set(lost["reason"].to_pylist()) == {"io_error"}
    assert lost["segment"].null_count == lost["offset"].null_count == lost.num_rows
    assert len(payloads(sink, table)) == 330 - lost.num_rows
    end = read_end(sink)
    assert end["drops"] == {"io_error": {"tensors": lost.num_rows, "bytes": lost.num_rows * 32000}}
    assert sum(gap["tensors"] for gap in end["gaps"]) == lost.num_rows
    assert all(gap["statistics_kept"] and gap["reason"] == "io_error" for gap in end["gaps"])
    assert end["gaps"][0]["first_step"] == 0
    assert not [row for row in table.to_pylist() if row["step"] >= 100 and row["status"] != "ok"]


def test_rows_beyond_the_memory_allowed_for_them_become_a_gap(sink: MemorySink) -> None:
    trainer = Trainer(data_bytes=MIB)
    sink.fault = refuse("full")
    options = FlusherOptions(
        **{name: getattr(QUICK, name) for name in ("visible_delay", "retry_delay", "grace")},
        kept_bytes=60_000,
    )
    flusher = FlusherThread(trainer, sink, options=options)
    for step in range(200):
        assert trainer.capture(step, weights(step, elements=8000)) == 0
    sink.fault = None
    wait_until(lambda: trainer.pending() == 0)
    trainer.capture(200, weights(200))
    trainer.ring.set_closing()
    assert flusher.join()
    table = read_index(sink)
    end = read_end(sink)
    without_rows = sum(gap["tensors"] for gap in end["gaps"] if not gap["statistics_kept"])
    assert without_rows > 0
    assert table.num_rows + without_rows == 603
    lost = table["status"].to_pylist().count("lost")
    assert end["drops"]["io_error"]["tensors"] == lost + without_rows
    (gap,) = [gap for gap in end["gaps"] if not gap["statistics_kept"]]
    steps = set(table["step"].to_pylist())
    assert set(range(gap["first_step"], gap["last_step"] + 1)).isdisjoint(steps)
    assert steps | set(range(gap["first_step"], gap["last_step"] + 1)) == set(range(201))


def test_a_flusher_that_dies_with_kept_rows_leaves_a_gap_and_no_hole(sink: MemorySink) -> None:
    trainer = Trainer(data_bytes=MIB)
    captured = threading.Event()

    def fault(operation: str, key: str) -> None:
        if operation == "put":
            if captured.is_set():
                raise Killed
            raise SinkError("full", kind="full")

    sink.fault = fault
    flusher = FlusherThread(trainer, sink)
    for step in range(100):
        assert trainer.capture(step, weights(step, elements=8000)) == 0
    captured.set()
    with pytest.raises(Killed):
        flusher.join()
    sink.fault = None
    assert flush_all(trainer, sink)
    table = read_index(sink)  # checks that there is no hole
    end = read_end(sink)
    assert end["gaps"] == [
        {
            "first_step": None,
            "last_step": None,
            "tensors": None,
            "bytes": None,
            "reason": "io_error",
            "statistics_kept": False,
        }
    ]
    assert end["drops"]["io_error"]["tensors"] == 300 - table.num_rows


def test_a_batch_that_cannot_be_written_for_a_fault_of_ours_becomes_a_gap(
    trainer: Trainer, sink: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tdcore.flusher import table as table_module

    good = table_module.encode_index
    calls = [0]

    def bad_once(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise TypeError("a fault of ours")
        return good(*args, **kwargs)

    monkeypatch.setattr(table_module, "encode_index", bad_once)
    flusher = FlusherThread(trainer, sink)
    trainer.capture(0, weights(0))
    wait_until(lambda: trainer.pending() == 0)
    trainer.capture(1, weights(1))
    trainer.ring.set_closing()
    assert flusher.join()
    assert set(read_index(sink)["step"].to_pylist()) == {1}
    end = read_end(sink)
    (gap,) = end["gaps"]
    assert (gap["first_step"], gap["last_step"], gap["tensors"], gap["bytes"]) == (0, 0, 3, 1200)
    assert "a fault of ours" in gap["reason"]
    assert end["drops"] == {"io_error": {"tensors": 3, "bytes": 1200}}
    named = set(read_index(sink)["segment"].to_pylist())
    assert {key.rpartition("/")[2] for key in sink.list(data_prefix("worker_0"))} == named


def test_a_sink_that_stays_broken_ends_the_flusher_after_its_deadline(
    trainer: Trainer, sink: MemorySink, capsys: pytest.CaptureFixture[str]
) -> None:
    sink.fault = refuse("denied")
    options = FlusherOptions(
        visible_delay=timedelta(),
        retry_delay=timedelta(milliseconds=5),
        end_deadline=timedelta(milliseconds=100),
    )
    trainer.capture(0, weights(0))
    assert not flush_all(trainer, sink, options=options)
    assert trainer.pending() == 1
    error = capsys.readouterr().err
    assert "not written: 1 records" in error
    assert "giving up" in trainer.ring.progress()["error"]
    assert sink.objects == {}


def test_a_removed_run_folder_is_made_again_with_its_documents(tmp_path: Path) -> None:
    root = tmp_path / "run"
    trainer, sink = Trainer(), LocalSink(root)
    sink.put(RUN_KEY, [b'{"format": 1}'])
    sink.put("attempts/0000-worker_0.json", [b"claim"])
    flusher = FlusherThread(trainer, LocalSink(root))
    trainer.ring.put_document(COLLECTIONS_KEY, b"collections")
    trainer.capture(0, weights(0))
    wait_until(lambda: trainer.pending() == 0)
    shutil.rmtree(root)
    trainer.capture(1, weights(1))
    wait_until(lambda: trainer.pending() == 0)
    trainer.ring.set_closing()
    assert flusher.join()
    assert sink.get(RUN_KEY) == b'{"format": 1}'
    assert sink.get(COLLECTIONS_KEY) == b"collections"
    assert sink.get("attempts/0000-worker_0.json") == b"claim"
    table = read_index(sink)  # no hole: the lost tickets are covered
    assert set(table["step"].to_pylist()) == {1}
    assert len(payloads(sink, table)) == 3
    (gap,) = read_end(sink)["gaps"]
    assert (gap["reason"], gap["tensors"], gap["last_step"]) == ("gone", 3, 0)


def test_a_folder_removed_while_a_batch_is_half_written_does_not_leave_rows_without_bytes(
    tmp_path: Path,
) -> None:
    root = tmp_path / "run"
    trainer = Trainer()
    removed = [False]

    class Fragile(LocalSink):
        def put(self, key: str, parts: Any) -> None:
            if key.startswith("index/") and not removed[0]:
                removed[0] = True
                shutil.rmtree(root)
            super().put(key, parts)

    trainer.capture(0, weights(0))
    assert flush_all(trainer, Fragile(root))
    sink = LocalSink(root)
    assert len(payloads(sink, read_index(sink))) == 3


def test_options_are_checked_and_survive_json() -> None:
    options = FlusherOptions(visible_delay=timedelta(seconds=2.5), merge_fan_in=4, give_up_fill=0.25)
    assert FlusherOptions.from_json(json.loads(json.dumps(options.as_json()))) == options
    with pytest.raises(ValueError, match="unknown flusher options"):
        FlusherOptions.from_json({"speed": 9})
    with pytest.raises(ValueError, match="visible_delay must not be negative"):
        FlusherOptions(visible_delay=timedelta(seconds=-1))
    with pytest.raises(ValueError, match="give_up_fill"):
        FlusherOptions(give_up_fill=1.5)
    with pytest.raises(ValueError, match="merge_fan_in"):
        FlusherOptions(merge_fan_in=1)
    with pytest.raises(ValueError, match="segment_bytes"):
        FlusherOptions(segment_bytes=0)


# As a process


def finish(process: subprocess.Popen[bytes]) -> str:
    """Its last words; checks that it ended well."""
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error.decode()
    return error.decode()


def test_the_flusher_process_drains_a_closed_ring_and_ends(trainer: Trainer, tmp_path: Path) -> None:
    process = spawn_flusher(trainer.ring.fd, str(tmp_path / "run"))
    for step in range(20):
        trainer.capture(step, weights(step))
    trainer.ring.set_closing()
    assert finish(process) == ""
    sink = LocalSink(tmp_path / "run")
    assert len(payloads(sink, read_index(sink))) == 60
    assert read_end(sink)["clean"]
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".tmp-")]


def test_the_flusher_process_is_humble_and_deaf_to_signals_meant_for_the_trainer(
    trainer: Trainer, tmp_path: Path
) -> None:
    process = spawn_flusher(trainer.ring.fd, str(tmp_path / "run"))
    trainer.capture(0, weights(0))
    wait_until(lambda: trainer.ring.progress()["rows"] == 3)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 10
    assert os.getsid(process.pid) == process.pid
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(each)
    trainer.capture(1, weights(1))
    wait_until(lambda: trainer.ring.progress()["rows"] == 6)
    trainer.ring.set_closing()
    finish(process)


def test_a_flusher_process_killed_again_and_again_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    trainer, sink = Trainer(data_bytes=16 * MIB), LocalSink(tmp_path / "run")
    random = np.random.default_rng(1)
    step = kills = 0
    process = spawn_flusher(trainer.ring.fd, str(tmp_path / "run"))
    while kills < 5:
        rows = trainer.ring.progress()["rows"]
        until = rows + int(random.integers(1, 200))
        while trainer.ring.progress()["rows"] < until:
            assert trainer.capture(step, weights(step, count=10, elements=2000)) == 0
            step += 1
            time.sleep(0.001)  # leaves the flusher some of the CPU
        time.sleep(float(random.uniform(0, 0.02)))
        process.kill()
        process.communicate()
        kills += 1
        process = spawn_flusher(trainer.ring.fd, str(tmp_path / "run"))
    trainer.ring.set_closing()
    finish(process)
    table = read_index(sink)
    assert table["step"].to_pylist() == [each for each in range(step) for _ in range(10)]
    found = payloads(sink, table)
    assert len(found) == 10 * step
    for (name, at, _), data in found.items():
        assert data == weights(at, count=10, elements=2000)[name].tobytes()
    end = read_end(sink)
    assert (end["totals"]["rows"], end["flusher_restarts"], end["drops"], end["gaps"]) == (
        10 * step,
        kills,
        {},
        [],
    )
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".tmp-")]


TRAINER = """
import os, sys, json, numpy as np
from tests.flushing import Trainer, spawn_flusher, WANT_PAYLOAD, WANT_STATS
trainer = Trainer(data_bytes=1 << 24)
pidfd = os.pidfd_open(os.getpid()) if sys.argv[2] == "pidfd" else -1
flusher = spawn_flusher(trainer.ring.fd, sys.argv[1], pidfd=pidfd)
for step in range(50):
    assert trainer.capture(step, {"w": np.full(5000, step, dtype=np.float32)}) == 0
print(flusher.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("way", ["pidfd", "no pidfd"])
def test_what_a_killed_trainer_had_captured_is_written_and_the_end_is_unclean(
    tmp_path: Path, way: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, str(tmp_path / "run"), way], capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    flusher = int(done.stdout)
    wait_until(
        lambda: not Path(f"/proc/{flusher}").exists() or "Z" in Path(f"/proc/{flusher}/stat").read_text()
    )
    sink = LocalSink(tmp_path / "run")
    table = read_index(sink)
    assert table["step"].to_pylist() == list(range(50))
    assert len(payloads(sink, table)) == 50
    end = read_end(sink)
    assert not end["clean"]
    assert "without closing" in end["reason"]
    assert (end["last_step"], end["drops"]) == (49, {})


def test_the_watch_without_pidfd_sees_death_zombies_and_reused_ids() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watch = TrainerWatch(child.pid, -1)
    assert not watch.dead()
    child.communicate(b"\n")
    wait_until(watch.dead)
    assert watch.dead()
    mine = TrainerWatch(os.getpid(), -1)
    assert not mine.dead()
    mine._started = "0"  # as if the id now belonged to a process that started at another time
    wait_until(mine.dead)
    zombie = subprocess.Popen([sys.executable, "-c", "pass"])
    wait_until(lambda: "Z" in Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(")")[2])
    assert TrainerWatch(zombie.pid, -1).dead()
    zombie.wait()


def test_a_small_disk_fills_and_empties_without_harm_to_the_training(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = os.geteuid() == 0 and shutil.which("mount")
    if (
        not mounted
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]).returncode
    ):
        pytest.skip("needs the right to mount a small file system")
    try:
        check_small_disk(place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def check_small_disk(place: Path) -> None:
    trainer, sink = Trainer(data_bytes=2 * MIB), LocalSink(place / "run")
    ballast = place / "ballast"
    ballast.write_bytes(bytes(7_900_000))
    process = spawn_flusher(trainer.ring.fd, str(place / "run"))
    for step in range(60):
        assert trainer.capture(step, {"w": np.full(20_000, step, dtype=np.float32)}) == 0
    wait_until(lambda: trainer.ring.progress()["error"])
    assert "No space left" in trainer.ring.progress()["error"]
    ballast.unlink()
    wait_until(lambda: trainer.pending() == 0)
    trainer.capture(60, {"w": np.full(1000, 60, dtype=np.float32)})
    trainer.ring.set_closing()
    assert "No space left" in finish(process)
    table = read_index(sink)
    assert table["step"].to_pylist() == list(range(61))
    statuses = table["status"].to_pylist()
    assert statuses[-1] == "ok"
    assert read_end(sink)["drops"]["io_error"]["tensors"] == statuses.count("lost") > 0
    assert len(payloads(sink, table)) == statuses.count("ok")
