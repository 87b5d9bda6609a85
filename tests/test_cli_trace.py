"""`tdcore trace`: the timeline of a run as a Chrome trace."""

from __future__ import annotations

import gzip
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore import create_trial
from tdcore.flusher.row_tables import to_parquet
from tdcore.flusher.system.recorder import sample_columns
from tdcore.format.layout import FileRange
from tdcore.format.step_times import STEP_TIME_FILES
from tdcore.format.system import SYSTEM_FILES
from tdcore.rules.trace import Trace
from tdcore.timeline import trace_events
from tests.rules.system_samples import write_step_times
from tests.test_cli import Command
from tests.trial.writer import RunWriter

BEGIN = 1_700_000_000_000_000_000
MS = 1_000_000
W = np.zeros(2, np.float32)


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def add_step(run: RunWriter, step: int, begin_ms: float, *, mode: str = "TRAIN") -> None:
    """A saved step: weight, output and loss 1 ms after one another, and the gradient 5 ms after the loss."""
    for kind, after in (("weight", 0), ("output", 1), ("loss", 2), ("gradient", 7)):
        time_ns = BEGIN + round((begin_ms + after) * MS)
        run.add(kind, W, step=step, mode=mode, kind=kind, time_ns=time_ns)


def add_samples(root: Path, worker: str, rows: list[dict[str, Any]], *, host: str = "node") -> None:
    place = FileRange(worker, 0, 0, len(rows) - 1)
    path = root / SYSTEM_FILES.key(host, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_parquet(sample_columns(rows, place, host), SYSTEM_FILES.schema(), "0123"))


def sample(at_ms: float, **columns: Any) -> dict[str, Any]:
    return {"time_ns": BEGIN + round(at_ms * MS), "seconds": 0.5, "lost": 0, **columns}


def events(tdcore: Command, root: Path, *options: str) -> list[dict[str, Any]]:
    out = root.parent / "trace.json"
    found = tdcore("trace", root, "-o", out, *options)
    assert found.code == 0, found
    document = json.loads(out.read_text())
    assert document["displayTimeUnit"] == "ms"
    return list(document["traceEvents"])


def named(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [each for each in found if each["name"] == name]


def test_a_saved_step_is_a_slice_of_its_captures(tdcore: Command, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    add_step(run, 3, 100)
    run.flush()
    run.end()
    found = events(tdcore, tmp_path / "run")
    (step,) = named(found, "TRAIN 3")
    assert (step["ph"], step["ts"], step["dur"]) == ("X", 0, 7000)
    assert step["args"] == {"attempt": 0, "step": 3, "tensors": 4}
    spans = [(each["name"], each["ts"], each["dur"]) for each in found if each["ph"] == "X"][1:]
    assert spans == [
        ("weights captured", 0, 1000),
        ("outputs captured", 1000, 1000),
        ("loss captured", 2000, 5000),
        ("gradients captured", 7000, 0),
    ]


def test_the_mean_time_of_steps_is_a_counter(tdcore: Command, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    for step, begin in ((0, 0), (10, 400), (20, 1000)):
        add_step(run, step, begin)
    run.flush()
    run.end()
    found = named(events(tdcore, tmp_path / "run"), "ms per TRAIN step")
    assert [(each["ts"], each["args"]) for each in found] == [(0, {"mean": 40.0}), (400_000, {"mean": 60.0})]


def test_each_worker_is_a_process_and_all_have_one_clock(tdcore: Command, tmp_path: Path) -> None:
    for rank in (0, 1):
        run = RunWriter(tmp_path / "run", worker=f"worker_{rank}", world_size=2)
        add_step(run, 0, 30 * rank)
        run.flush()
        run.end()
    found = events(tdcore, tmp_path / "run")
    processes = {each["pid"]: each["args"]["name"] for each in named(found, "process_name")}
    steps = {processes[each["pid"]]: each["ts"] for each in named(found, "TRAIN 0")}
    assert steps == {"worker_0": 0, "worker_1": 30_000}


def test_a_finding_is_at_the_end_of_its_step(tdcore: Command, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    for step, begin in ((0, 0), (1, 10)):
        add_step(run, step, begin)
    run.flush()
    finding = {
        "rule": "VanishingGradient", "code": "TDC101", "step": 1, "mode": "TRAIN", "mode_step": 1,
        "worker": "worker_0", "attempt": 0, "tensor": "w", "why": "small", "do": "change", "count": 1,
    }  # fmt: skip
    run.write("findings/vanishing_gradient.jsonl", json.dumps(finding).encode() + b"\n")
    run.end()
    written = events(tdcore, tmp_path / "run")
    (found,) = named(written, "VanishingGradient")
    assert (found["ph"], found["s"], found["ts"]) == ("i", "t", 17_000)
    (track,) = [each for each in named(written, "thread_name") if each["args"]["name"] == "findings"]
    assert (found["pid"], found["tid"]) == (track["pid"], track["tid"])
    assert found["args"]["why"] == "small"


def test_a_finding_about_system_samples_is_at_its_sample(tdcore: Command, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    add_step(run, 0, 0)
    run.flush()
    add_samples(tmp_path / "run", "worker_0", [sample(0), sample(500), sample(1000)])
    finding = {
        "rule": "MemoryGrowth", "code": "TDC213", "step": 1, "mode": "SYSTEM", "mode_step": 1,
        "worker": "worker_0", "attempt": 0, "tensor": "node", "why": "it grows", "do": "look", "count": 1,
    }  # fmt: skip
    run.write("findings/memory_growth.jsonl", json.dumps(finding).encode() + b"\n")
    run.end()
    (found,) = named(events(tdcore, tmp_path / "run"), "MemoryGrowth")
    assert found["ts"] == 500_000


def test_samples_are_counters_of_their_worker_and_host(tdcore: Command, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    add_step(run, 0, 250)
    run.flush()
    run.end()
    gpu = {"index": 1, "uuid": "x", "utilization_percent": 80.0, "memory_used": 3_000_000}
    add_samples(
        tmp_path / "run",
        "worker_0",
        [sample(0, cpu_percent=40.0, disk_read_bytes=1_000_000, trainer_memory=5_000_000, gpus=[gpu])],
    )
    found = events(tdcore, tmp_path / "run")
    counters = {each["name"]: (each["pid"], each["args"]) for each in found if each["ph"] == "C"}
    host = next(each["pid"] for each in named(found, "process_name") if each["args"]["name"] == "host node")
    assert counters["CPU (%)"] == (host, {"value": 40.0})
    assert counters["disk (MB/s)"] == (host, {"read": 2.0})
    assert counters["GPU 1 utilization (%)"] == (host, {"value": 80.0})
    assert counters["GPU 1 memory (MB)"] == (host, {"used": 3.0})
    worker = next(each["pid"] for each in named(found, "process_name") if each["args"]["name"] == "worker_0")
    assert counters["trainer memory (MB)"] == (worker, {"value": 5.0})
    assert "I/O wait (%)" not in counters
    assert named(found, "TRAIN 0")[0]["ts"] == 250_000


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["TRAIN", "EVAL"]),
            st.integers(0, 5),
            st.sampled_from(["weight", "output", "loss", "gradient", "scalar"]),
            st.integers(-(2**63), 2**63 - 1) | st.integers(BEGIN, BEGIN + 50),
        ),
        max_size=20,
    )
)
@settings(max_examples=40)
def test_slices_of_a_track_do_not_overlap_for_any_times(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, str, int]]
) -> None:
    run = RunWriter(tmp_path_factory.mktemp("run"))
    for mode, step, kind, time_ns in rows:
        run.add(kind, W, step=step, mode=mode, kind=kind, time_ns=time_ns)
    run.flush()
    run.end()
    found = list(trace_events(create_trial(run.root)))
    json.dumps(found, allow_nan=False)
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for each in found:
        if each["ph"] == "X":
            tracks.setdefault((each["pid"], each["tid"]), []).append(each)
            assert each["ts"] >= 0
            assert each["dur"] >= 0
    for track in tracks.values():
        steps = [each for each in track if each["args"]]
        for before, after in pairwise(steps):
            assert before["ts"] + before["dur"] <= after["ts"] * (1 + 1e-12)


def test_steps_whose_times_overlap_by_nanoseconds_are_all_shown(tmp_path: Path) -> None:
    # The time of the day is adjusted while a step runs, so the step seems to end after the next one begins.
    run = RunWriter(tmp_path)
    run.flush()
    run.end()
    steps = Trace()
    for step in range(40):
        for worker in ("worker_0", "worker_1"):
            steps.add_step_time(step, worker=worker, forward=10, time_ns=BEGIN + step * (10 * MS - 351))
    write_step_times(tmp_path, steps)
    found = list(trace_events(create_trial(tmp_path)))
    slices = [each for each in found if each.get("cat") == "step"]
    assert len(slices) == 80
    for process in {each["pid"] for each in slices}:
        track = [each for each in slices if each["pid"] == process]
        for before, after in pairwise(track):
            assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=1e-3)
            assert round(1000 * (before["ts"] + before["dur"])) <= round(1000 * after["ts"])
        assert track[-1]["dur"] == 10_000


def test_the_counter_of_a_phase_is_zero_in_steps_without_the_phase(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.flush()
    run.end()
    steps = Trace()
    for step in range(3):
        steps.add_step_time(step, forward=10, checkpoint=5 if step == 1 else 0)
    write_step_times(tmp_path, steps)
    found = list(trace_events(create_trial(tmp_path)))
    values = [each["args"] for each in found if each["ph"] == "C"]
    assert values == [
        {"forward": 10.0},
        {"forward": 10.0, "checkpoint": 5.0},
        {"forward": 10.0, "checkpoint": 0.0},
    ]
    slices = [each for each in found if each.get("cat") == "step"]
    assert ["checkpoint ms" in each["args"] for each in slices] == [False, True, False]


def test_no_track_is_taken_for_the_main_thread_of_its_process(tdcore: Command, tmp_path: Path) -> None:
    for worker in range(3):
        run = RunWriter(tmp_path / "run", worker=f"worker_{worker}", world_size=3)
        for mode in ("TRAIN", "EVAL", "PREDICT"):
            add_step(run, worker, 10, mode=mode)
        run.flush()
        run.end()
    add_samples(tmp_path / "run", "worker_0", [sample(0, cpu_percent=40.0)])
    found = events(tdcore, tmp_path / "run")
    assert {each["pid"] for each in found}.isdisjoint(each["tid"] for each in found)


def test_a_compressed_file_has_the_same_events(tdcore: Command, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    add_step(run, 0, 0)
    run.flush()
    run.end()
    plain = events(tdcore, tmp_path / "run")
    tdcore("trace", tmp_path / "run", "-o", tmp_path / "trace.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"] == plain


def test_the_trace_names_what_is_missing(tdcore: Command, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    add_step(run, 0, 0)
    run.flush()
    run.ticket += 1
    run._first += 1
    add_step(run, 1, 10)
    run.flush()
    run.end()
    document = json.loads(tdcore("trace", tmp_path / "run", "-o", "-").out)
    (text,) = document["otherData"]["missing"]
    assert text.startswith("rows of worker_0 of attempt 0 are missing")


def test_only_the_chosen_attempt_is_in_the_trace(tdcore: Command, tmp_path: Path) -> None:
    for attempt in (0, 1):
        run = RunWriter(tmp_path / "run", attempt=attempt)
        add_step(run, 0, 1000 * attempt)
        run.flush()
        run.end()
    found = events(tdcore, tmp_path / "run", "--attempt", "1")
    assert [(each["ts"], each["args"]["attempt"]) for each in named(found, "TRAIN 0")] == [(0, 1)]


def test_a_file_that_cannot_be_written_is_named(tdcore: Command, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.end()
    found = tdcore("trace", tmp_path / "run", "-o", tmp_path / "no" / "trace.json")
    assert found.code == 2
    assert "trace.json" in found.err
    assert "cannot be written" in found.err
    found = tdcore("trace", tmp_path / "run", "-o", tmp_path)
    assert (found.code, "cannot be written" in found.err) == (2, True)
    assert not list(tmp_path.glob(".*trace*"))


def test_a_pipe_is_written_and_not_replaced(tdcore: Command, tmp_path: Path) -> None:
    RunWriter(tmp_path / "run").end()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert tdcore("trace", tmp_path / "run", "-o", pipe).code == 0
        assert json.loads(os.read(reader, 1 << 16))["traceEvents"] == []
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_link_stays_and_the_file_has_the_permissions_of_new_files(tdcore: Command, tmp_path: Path) -> None:
    RunWriter(tmp_path / "run").end()
    (tmp_path / "link.json").symlink_to(tmp_path / "file.json")
    mask = os.umask(0o077)
    try:
        assert tdcore("trace", tmp_path / "run", "-o", tmp_path / "link.json").code == 0
    finally:
        os.umask(mask)
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "file.json").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_reported(tdcore: Command, tmp_path: Path) -> None:
    RunWriter(tmp_path / "run").end()
    found = tdcore("trace", tmp_path / "run", "-o", "/dev/full")
    assert found.code == 2
    assert "No space left on device" in found.err


def test_a_run_without_data_gives_an_empty_trace(tdcore: Command, tmp_path: Path) -> None:
    RunWriter(tmp_path / "run").end()
    assert events(tdcore, tmp_path / "run") == []


def add_step_times(root: Path, trace: Trace) -> None:
    for (attempt, worker), rows in trace.step_times.items():
        place = FileRange(worker, attempt, rows[0]["row"], rows[-1]["row"])
        path = root / STEP_TIME_FILES.key("", place)
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        path.write_bytes(to_parquet(columns, STEP_TIME_FILES.schema(), "0123"))


def test_each_step_is_a_slice_with_its_phases_also_if_it_saves_nothing(
    tdcore: Command, tmp_path: Path
) -> None:
    run = RunWriter(tmp_path / "run")
    add_step(run, 1, 20)
    run.flush()
    trace = Trace()
    for step in range(3):
        trace.add_step_time(step, time_ns=BEGIN + 20 * step * MS, data=12, forward=8)
    add_step_times(tmp_path / "run", trace)
    run.end()
    found = events(tdcore, tmp_path / "run")
    steps = [each for each in found if each.get("cat") == "step"]
    assert [(each["name"], each["ts"], each["dur"]) for each in steps] == [
        ("TRAIN 0", 0, 20_000),
        ("TRAIN 1", 20_000, 20_000),
        ("TRAIN 2", 40_000, 20_000),
    ]
    assert steps[0]["args"] == {"attempt": 0, "step": 0, "data ms": 12, "forward ms": 8}
    phases = named(found, "phases of a step (ms)")
    assert [each["args"] for each in phases] == [{"data": 12, "forward": 8}] * 3
    saved = [each for each in found if each.get("cat") == "saved" and each["name"] == "TRAIN 1"]
    assert saved[0]["ts"] == 20_000


def test_a_finding_about_a_step_that_saves_nothing_is_at_this_step(tdcore: Command, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    add_step(run, 0, 0)
    run.flush()
    trace = Trace()
    for step in range(3):
        trace.add_step_time(step, time_ns=BEGIN + 20 * step * MS, forward=20)
    add_step_times(tmp_path / "run", trace)
    run.end()
    finding: dict[str, Any] = {
        "rule": "StepOutlier",
        "code": "TDC208",
        "worker": "worker_0",
        "attempt": 0,
        "mode": "TRAIN",
    }
    finding |= {"step": 2, "mode_step": 2}
    run.write("findings/StepOutlier.jsonl", json.dumps(finding).encode() + b"\n")
    (found,) = named(events(tdcore, tmp_path / "run"), "StepOutlier")
    assert found["ts"] == 40_000
