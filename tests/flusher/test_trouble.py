"""A sink that refuses writes: the training continues, the gap is recorded, later data is kept."""

from __future__ import annotations

import json
import shutil
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from tdcore.flusher import FlusherOptions
from tdcore.format.layout import COLLECTIONS_KEY, RUN_KEY, data_prefix
from tdcore.sinks import LocalSink, MemorySink, SinkError
from tdcore.trial import create_trial
from tests.flushing import (
    MIB,
    QUICK,
    FlusherThread,
    Killed,
    Trainer,
    flush_all,
    payloads,
    read_end,
    read_index,
    refuse,
    weights,
)
from tests.waiting import wait_until


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
    from tdcore.flusher import index_table as table_module

    good = table_module.encode_index
    calls = [0]

    def bad_once(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise TypeError("a bug in the sink")
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
    assert "a bug in the sink" in gap["reason"]
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
    assert "stopped after" in trainer.ring.progress()["error"]
    assert sink.objects == {}


def test_a_disk_that_stays_full_is_given_up_soon_and_what_is_lost_is_counted(
    trainer: Trainer, sink: MemorySink, capsys: pytest.CaptureFixture[str]
) -> None:
    sink.fault = refuse("full")
    options = FlusherOptions(
        visible_delay=timedelta(),
        retry_delay=timedelta(milliseconds=5),
        end_deadline=timedelta(days=1),
        full_deadline=timedelta(milliseconds=100),
    )
    for step in range(4):
        trainer.capture(step, weights(step))
    assert not flush_all(trainer, sink, options=options)
    tensors = 4 * len(weights(0))
    assert trainer.ring.counters()["drops"]["io_error"]["tensors"] == tensors
    assert trainer.pending() == 4
    assert "lost, and counted in drops" in trainer.ring.progress()["error"]
    assert "lost, and counted in drops" in capsys.readouterr().err


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


def test_a_reader_sees_a_gap_while_the_run_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "run"
    trainer, sink = Trainer(), LocalSink(root)
    entry = {"attempt": 0, "started_ns": time.time_ns(), "host": "test", "pid": 0}
    sink.put(RUN_KEY, [json.dumps({"format": 1, "run_id": "0", "attempts": [entry]}).encode()])
    flusher = FlusherThread(trainer, LocalSink(root))
    trainer.capture(0, weights(0))
    wait_until(lambda: trainer.pending() == 0)
    shutil.rmtree(root)
    trainer.capture(1, weights(1))
    wait_until(lambda: trainer.pending() == 0)
    trial = create_trial(root)
    (gap,) = trial.gaps
    assert (gap.reason, gap.tensors, gap.last_step) == ("gone", 3, 0)
    trainer.ring.set_closing()
    assert flusher.join()
    assert trial.gaps == [gap]  # once, although the end file contains it, too


def test_a_folder_that_is_removed_twice_leaves_both_gaps(tmp_path: Path) -> None:
    root = tmp_path / "run"
    trainer = Trainer()
    flusher = FlusherThread(trainer, LocalSink(root))
    for step in range(2):
        trainer.capture(step, weights(step))
        wait_until(lambda: trainer.pending() == 0)
        shutil.rmtree(root)
    trainer.capture(2, weights(2))
    trainer.ring.set_closing()
    assert flusher.join()
    gaps = read_end(LocalSink(root))["gaps"]
    assert [(gap["tensors"], gap["last_step"], gap["reason"]) for gap in gaps] == [
        (3, 0, "gone"),
        (3, 1, "gone"),
    ]
