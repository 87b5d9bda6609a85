"""tdcore show --time: what it prints, for runs that are written as the flusher writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tdcore.flusher.row_tables import to_parquet
from tdcore.format.layout import FileRange
from tdcore.format.step_times import STEP_TIME_FILES
from tdcore.rules.trace import Trace
from tests.test_cli import Command
from tests.trial.writer import RunWriter


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def write(root: Path, trace: Trace) -> Path:
    """Write a run with these times of steps."""
    run = RunWriter(root)
    run.add("loss", 1.0, step=0, kind="loss")
    run.flush()
    for (attempt, worker), rows in trace.step_times.items():
        place = FileRange(worker, attempt, rows[0]["row"], rows[-1]["row"])
        path = root / STEP_TIME_FILES.key("", place)
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        path.write_bytes(to_parquet(columns, STEP_TIME_FILES.schema(), "0123"))
    run.end()
    return root


def training() -> Trace:
    """Ten steps of 10 ms. One step is slow because of the garbage collector."""
    trace = Trace()
    for step in range(10):
        trace.add_step_time(
            step, data=3, forward=2, backward=4, optimizer=1, capture=0.5, gc=90 * (step == 6)
        )
    return trace


def test_the_share_of_each_phase_is_printed(tdcore: Command, tmp_path: Path) -> None:
    found = tdcore("show", write(tmp_path / "run", training()), "--time")
    assert found.code == 0
    lines = found.out.splitlines()  # a long path of the run has several lines
    (head,) = [at for at, line in enumerate(lines) if line.startswith("10 steps in 190 ms")]
    assert lines[head].startswith("10 steps in 190 ms; a step takes 10 ms (median)")
    shares = [line.split()[:5] for line in lines[head + 1 :] if "%" in line]
    assert shares[:2] == [["gc", "9", "ms", "47.4", "%"], ["backward", "4", "ms", "21.1", "%"]]
    assert "tdcore itself: 0.5 ms per step (2.6 %)" in found.out
    assert "slowest: step 6 100 ms (gc 90 ms)" in found.out


def test_the_json_has_the_same_numbers(tdcore: Command, tmp_path: Path) -> None:
    found = tdcore("show", write(tmp_path / "run", training()), "--time", "--json")
    (times,) = json.loads(found.out)["times"]
    assert (times["steps"], times["total_ms"], times["median_ms"]) == (10, 190.0, 10.0)
    assert times["phases_ms"] == {"data": 30, "forward": 20, "backward": 40, "optimizer": 10, "gc": 90}
    assert times["slowest"][0] == {"mode_step": 6, "ms": 100.0, "phase": "gc", "phase_ms": 90.0}


def test_the_time_of_the_gpu_is_the_mean_of_the_steps_that_have_it(tdcore: Command, tmp_path: Path) -> None:
    trace = training()
    (rows,) = trace.step_times.values()
    for row in rows[:4]:
        row["gpu_ns"] = 8_000_000
    run = write(tmp_path / "run", trace)
    assert "GPU: 8 ms per step" in tdcore("show", run, "--time").out
    (times,) = json.loads(tdcore("show", run, "--time", "--json").out)["times"]
    assert (times["gpu_ms"], times["gpu_steps"]) == (32.0, 4)


def test_each_worker_and_mode_has_its_own_table(tdcore: Command, tmp_path: Path) -> None:
    trace = Trace()
    for worker in ("worker_0", "worker_1"):
        trace.add_step_time(0, worker=worker, forward=1)
        trace.add_step_time(1, worker=worker, mode="EVAL", mode_step=0, forward=1)
    found = tdcore("show", write(tmp_path / "run", trace), "--time", "--json")
    assert [(each["worker"], each["mode"]) for each in json.loads(found.out)["times"]] == [
        ("worker_0", "TRAIN"),
        ("worker_1", "TRAIN"),
        ("worker_0", "EVAL"),
        ("worker_1", "EVAL"),
    ]
    only = tdcore("show", tmp_path / "run", "--time", "--json", "--mode", "eval")
    assert {each["mode"] for each in json.loads(only.out)["times"]} == {"EVAL"}


def test_lost_rows_are_named(tdcore: Command, tmp_path: Path) -> None:
    trace = training()
    (rows,) = trace.step_times.values()
    for row in rows:
        row["row"] += 3
    found = tdcore("show", write(tmp_path / "run", trace), "--time")
    assert "The times of 3 steps are missing" in found.out


def test_a_run_without_times_is_an_error_that_says_why(tdcore: Command, tmp_path: Path) -> None:
    found = tdcore("show", write(tmp_path / "run", Trace()), "--time")
    assert found.code == 2
    assert "has no times of steps; no step has begun, or TDCORE_STEP_TIMES is off" in found.err
