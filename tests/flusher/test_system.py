"""Samples of the machine and the trainer: what they contain, how they are written, what a failure costs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tdcore as td
from tdcore.config.settings import system_interval
from tdcore.errors import ConfigError, RunCorrupt, SinkError
from tdcore.flusher.options import FlusherOptions
from tdcore.flusher.system import SystemRecorder
from tdcore.flusher.system.processes import ProcessTree
from tdcore.format.layout import FileRange
from tdcore.format.system import SYSTEM_FILES
from tdcore.session import Session
from tdcore.sinks import LocalSink, MemorySink
from tdcore.trial.row_files import read_rows
from tests.waiting import wait_until

OPTIONS = FlusherOptions(system_interval=timedelta(seconds=1), row_delay=timedelta(seconds=4))


def recorder(sink: Any, *, run_id: str = "", worker: str = "worker_0", host: str = "node") -> SystemRecorder:
    """For this process as the trainer. run_id: a name that no other test holds."""
    return SystemRecorder(
        sink,
        FileRange(worker, 0, 0, 0),
        trainer_pid=os.getpid(),
        run_id=run_id or f"{os.getpid()}-{time.monotonic_ns()}",
        options=OPTIONS,
        host=host,
    )


@pytest.fixture
def make() -> Iterator[Callable[..., SystemRecorder]]:
    """Makes recorders that are closed after the test."""
    with contextlib.ExitStack() as made:

        def make(*arguments: Any, **options: Any) -> SystemRecorder:
            return made.enter_context(contextlib.closing(recorder(*arguments, **options)))

        yield make


def samples(sink: Any) -> pa.Table:
    return read_rows(SYSTEM_FILES, sink, "", [0], None)


# What a sample has.


def test_a_run_has_samples_of_the_trainer_the_flusher_and_the_machine(tmp_path: Path) -> None:
    session = Session(tmp_path / "run", configuration={}, framework="test", framework_version="1")
    wait_until(lambda: session.counters() is not None)
    system = tmp_path / "run" / "system"
    wait_until(lambda: list(system.rglob("*.parquet")), "samples were written")
    session.close()
    table = td.create_trial(tmp_path / "run").system()
    assert table.num_rows >= 2
    last = table.to_pylist()[-1]
    assert last["memory_total"] == psutil.virtual_memory().total
    assert 0 < last["memory_available"] <= last["memory_total"]
    assert len(last["core_percent"]) == psutil.cpu_count()
    assert 0 <= last["cpu_percent"] <= 100
    assert last["trainer_memory"] > 1 << 20
    assert last["flusher_memory"] > 1 << 20
    assert last["gpus"] is None or last["gpus"][0]["index"] == 0
    assert table["sample"].to_pylist() == list(range(table.num_rows))
    assert table["time_ns"].to_pylist() == sorted(table["time_ns"].to_pylist())
    assert len(list(system.rglob("*.parquet"))) == 1


# Which flusher samples the machine.


def test_one_worker_of_a_host_samples_the_machine(make: Callable[..., SystemRecorder]) -> None:
    sink, run_id = MemorySink(), f"{os.getpid()}-{time.monotonic_ns()}"
    first, second = (make(sink, run_id=run_id, worker=f"worker_{rank}") for rank in (0, 1))
    for now in range(3):
        first.poll(now)
        second.poll(now)
    first.finish(3)
    second.poll(4)
    second.finish(5)
    rows = samples(sink).to_pylist()
    machine = [(row["worker"], row["sample"]) for row in rows if row["memory_total"] is not None]
    assert machine == [("worker_0", 0), ("worker_0", 1), ("worker_0", 2), ("worker_1", 3)]
    assert all(row["trainer_memory"] for row in rows)


# How samples are written.


def test_a_long_run_has_few_files_with_every_sample_once(make: Callable[..., SystemRecorder]) -> None:
    sink = MemorySink()
    writer = make(sink)
    for now in range(1200):
        writer.poll(now)
        assert len(sink.objects) < 50
    assert samples(sink).num_rows > 1190
    writer.finish(1200)
    writer.merge_all()
    assert list(sink.objects) == ["system/node/worker_0/0000-000000000000-000000001199.parquet"]
    assert samples(sink)["sample"].to_pylist() == list(range(1200))


def test_a_flusher_continues_after_the_samples_of_one_that_died(make: Callable[..., SystemRecorder]) -> None:
    sink = MemorySink()
    for life in range(3):
        writer = make(sink, run_id=f"life-{life}-{time.monotonic_ns()}")
        for now in range(10):
            writer.poll(now)
    assert samples(sink)["sample"].to_pylist() == list(range(samples(sink).num_rows))


@settings(deadline=None)
@given(failing=st.lists(st.booleans(), min_size=1, max_size=60))
def test_samples_of_a_failing_sink_are_written_when_it_works_again(failing: list[bool]) -> None:
    sink = MemorySink()
    fails = False

    def fault(operation: str, key: str) -> None:
        if fails:
            raise SinkError("made up", kind="transient")

    sink.fault = fault
    writer = recorder(sink)
    for now, each in enumerate(failing):
        fails = each
        writer.poll(now)
    fails = False
    writer.finish(len(failing))
    assert samples(sink)["sample"].to_pylist() == list(range(len(failing)))


def test_samples_that_no_memory_is_left_for_are_counted(
    make: Callable[..., SystemRecorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdcore.flusher.system.recorder._MAX_WAITING", 10)
    sink = MemorySink()

    def fault(operation: str, key: str) -> None:
        raise SinkError("made up", kind="transient")

    sink.fault = fault
    writer = make(sink)
    for now in range(100):
        writer.poll(now)
    sink.fault = None
    writer.finish(100)
    table = samples(sink)
    assert table.num_rows + sum(table["lost"].to_pylist()) == 100
    assert table.num_rows <= 10


def test_samples_are_stored_once_although_answers_are_lost_and_the_memory_is_full(
    make: Callable[..., SystemRecorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdcore.flusher.system.recorder._MAX_WAITING", 10)
    answers = False

    class Sink(MemorySink):
        def put(self, key: str, parts: Any) -> None:
            super().put(key, parts)
            if not answers:
                raise SinkError("the answer was lost", kind="transient")

    sink = Sink()
    writer = make(sink)
    for now in range(30):
        writer.poll(now)
    answers = True
    writer.finish(30)
    found = [SYSTEM_FILES.parse(key) for key in sink.objects]
    stored = [row for each in found if each for row in range(each[1].first, each[1].last + 1)]
    table = samples(sink)
    assert sorted(stored) == sorted(set(stored)) == table["sample"].to_pylist()
    assert len(set(table["time_ns"].to_pylist())) == table.num_rows


def test_a_sample_that_fails_switches_sampling_off_and_is_reported(
    make: Callable[..., SystemRecorder], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def denied(self: object, now: float) -> None:
        raise PermissionError("made up")

    sink = MemorySink()
    writer = make(sink)
    writer.poll(0)
    monkeypatch.setattr(ProcessTree, "sample", denied)
    writer.poll(1)
    writer.poll(2)
    writer.finish(3)
    assert samples(sink).num_rows == 1
    assert capfd.readouterr().err.count("system metrics are off from here: PermissionError") == 1


def test_a_run_that_is_removed_is_reported_to_the_flusher(
    make: Callable[..., SystemRecorder], tmp_path: Path
) -> None:
    sink = LocalSink(tmp_path / "run")
    sink.put("run.json", [b"{}"])
    writer = make(sink)
    writer.poll(0)
    (tmp_path / "run" / "run.json").unlink()
    (tmp_path / "run").rmdir()
    with pytest.raises(SinkError) as caught:
        writer.finish(1)
    assert caught.value.kind == "gone"


# Settings and reading.


def test_no_samples_are_taken_when_they_are_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDCORE_SYSTEM_INTERVAL", "off")
    session = Session(tmp_path / "run", configuration={}, framework="test", framework_version="1")
    session.close()
    assert not (tmp_path / "run" / "system").exists()
    assert td.create_trial(tmp_path / "run").system().num_rows == 0


@pytest.mark.parametrize("text", ["0.01", "61", "fast", "nan", "0"])
def test_an_invalid_interval_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"TDCORE_SYSTEM_INTERVAL must be 0\.1 to 60 seconds, or off, got"):
        system_interval({"TDCORE_SYSTEM_INTERVAL": text})


def test_a_damaged_file_is_named(make: Callable[..., SystemRecorder]) -> None:
    sink = MemorySink()
    writer = make(sink)
    writer.poll(0)
    writer.finish(1)
    (key,) = sink.objects
    sink.objects[key] = sink.objects[key][:-20]
    with pytest.raises(RunCorrupt, match=key):
        samples(sink)


def test_files_that_are_merged_while_they_are_read_are_read_again(
    make: Callable[..., SystemRecorder],
) -> None:
    sink = MemorySink()
    writer = make(sink)
    for now in range(10):
        writer.poll(now)
    merged: list[str] = []

    def fault(operation: str, key: str) -> None:
        if operation == "get" and not merged:
            merged.append(key)
            writer.finish(10)
            writer.merge_all()

    sink.fault = fault
    assert samples(sink)["sample"].to_pylist() == list(range(10))
    assert merged


def test_files_of_another_run_are_refused(make: Callable[..., SystemRecorder]) -> None:
    sink = MemorySink()
    writer = make(sink, run_id=f"one-{time.monotonic_ns()}")
    writer.poll(0)
    writer.finish(1)
    assert read_rows(SYSTEM_FILES, sink, "", [0], None).num_rows == 1
    with pytest.raises(RunCorrupt, match="it was copied from another run"):
        read_rows(SYSTEM_FILES, sink, "another", [0], None)


def test_a_file_with_other_samples_than_its_name_says_is_refused(make: Callable[..., SystemRecorder]) -> None:
    sink = MemorySink()
    writer = make(sink)
    writer.poll(0)
    writer.finish(1)
    (key,) = sink.objects
    sink.objects[key.replace("000000000000.parquet", "000000000007.parquet")] = sink.objects.pop(key)
    with pytest.raises(RunCorrupt, match="has 1 rows, and not those of its name"):
        samples(sink)


def test_files_that_a_killed_merge_has_left_are_removed(make: Callable[..., SystemRecorder]) -> None:
    sink = MemorySink()
    first = make(sink)
    for now in range(10):
        first.poll(now)
    left = dict(sink.objects)
    first.finish(10)
    first.merge_all()
    sink.objects |= left
    second = make(sink)
    second.poll(20)
    second.finish(21)
    assert len(sink.objects) == 2
    assert samples(sink)["sample"].to_pylist() == list(range(11))


def test_files_with_a_gap_between_them_are_not_merged(make: Callable[..., SystemRecorder]) -> None:
    sink = MemorySink()
    first = make(sink)
    for now in range(14):
        first.poll(now)
    first.finish(14)
    removed = sorted(sink.objects)[1]
    del sink.objects[removed]
    kept = samples(sink)["sample"].to_pylist()
    second = make(sink)
    second.poll(20)
    second.finish(21)
    second.merge_all()
    assert samples(sink)["sample"].to_pylist() == [*kept, 14]
