"""Trial.missing: rows that should be there but are not, and where they may be."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tdcore.trial import Missing, Trial
from tdcore.trial.trial_factory import open_trial
from tests.trial.far import FarSink
from tests.trial.writer import EPOCH_NS, RunWriter

ONE = np.ones(3, dtype=np.float32)


def far_trial(root: Path) -> Trial:
    return open_trial(FarSink(root), wait=lambda _: None)


def claim(run: RunWriter, **fields: Any) -> None:
    """Change the claim of the worker."""
    key = f"attempts/{run.attempt:04d}-{run.worker}.json"
    run.put(key, json.loads((run.root / key).read_text()) | fields)


def saved(root: Path, **options: Any) -> RunWriter:
    """Write a run that began long ago and saved three steps, in a file each."""
    run = RunWriter(root, **{"epoch_ns": EPOCH_NS, **options})
    for step in range(3):
        run.add("a", ONE, step=step)
        run.flush()
    return run


def ended_process() -> int:
    """Return the process id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_nothing_is_missing_of_a_run_that_has_ended_or_goes_on(tmp_path: Path) -> None:
    saved(tmp_path / "ended").end()
    assert far_trial(tmp_path / "ended").missing() == []
    saved(tmp_path / "running", epoch_ns=time.time_ns())
    assert far_trial(tmp_path / "running").missing() == []


def test_a_hole_is_missing_rows(tmp_path: Path) -> None:
    run = saved(tmp_path)
    run.index_files()[1].unlink()
    run.end()
    assert far_trial(tmp_path).missing() == [
        Missing(
            worker="worker_0",
            attempt=0,
            what="rows",
            first=1,
            last=1,
            advice="an index file was lost or deleted: restore it from a copy",
        )
    ]


def test_the_spool_of_the_worker_is_named_with_its_host(tmp_path: Path) -> None:
    run = saved(tmp_path, host="node-7")
    claim(run, spool="/var/my spool/0")
    run.index_files()[1].unlink()
    rows, end = far_trial(tmp_path).missing()
    assert rows.advice == "run `tdcore upload '/var/my spool/0'` on node-7"
    assert (end.what, end.first, end.last) == ("end", 3, None)
    assert end.advice == "if it no longer runs, run `tdcore upload '/var/my spool/0'` on node-7"


def test_without_a_spool_only_the_latest_attempt_is_expected_to_end(tmp_path: Path) -> None:
    saved(tmp_path)
    saved(tmp_path, attempt=1, worker="worker_1")
    (end,) = far_trial(tmp_path).missing()
    assert (end.worker, end.attempt, end.what) == ("worker_1", 1, "end")
    assert end.advice == "check whether it still runs on test"


def test_a_spool_of_an_earlier_attempt_is_named(tmp_path: Path) -> None:
    for worker in ("worker_0", "worker_1"):
        run = saved(tmp_path, host="node-7", worker=worker)
        claim(run, spool=f"/spool/{worker}/0")
    run.end()
    saved(tmp_path, attempt=1).end()
    trial = far_trial(tmp_path)
    assert trial.status == "ended"
    upload = "run `tdcore upload /spool/worker_0/0` on node-7"
    assert trial.missing() == [
        Missing(
            worker="worker_0",
            attempt=0,
            what="end",
            first=3,
            last=None,
            advice=f"if it no longer runs, {upload}",
        )
    ]


def test_an_earlier_attempt_that_still_runs_or_still_saves_is_not_missing(tmp_path: Path) -> None:
    now = time.time_ns()
    claim(
        saved(tmp_path, worker="lives"),
        host=socket.gethostname(),
        pid=os.getpid(),
        started_ns=now,
        spool="/s",
    )
    claim(saved(tmp_path, worker="saves", epoch_ns=now), spool="/s")
    saved(tmp_path, attempt=1).end()
    assert far_trial(tmp_path).missing() == []


def test_claims_are_read_once_and_together(tmp_path: Path) -> None:
    for attempt in range(4):
        for worker in ("worker_0", "worker_1"):
            run = saved(tmp_path, worker=worker, attempt=attempt)
            if attempt % 2:
                claim(run, spool="/spool")
    sink = FarSink(tmp_path)
    trial = open_trial(sink, wait=lambda _: None)
    sink.reset()
    first = trial.missing()
    assert [(each.attempt, each.worker) for each in first] == [
        (attempt, worker) for attempt in (1, 3) for worker in ("worker_0", "worker_1")
    ]
    assert sorted(key for operation, key in sink.requests if operation == "get") == [
        f"attempts/{attempt:04d}-{worker}.json" for attempt in range(4) for worker in ("worker_0", "worker_1")
    ]
    assert not [key for operation, key in sink.waits if operation == "get"]
    sink.reset()
    assert trial.missing() == first
    assert sink.count("get") == 0


def test_a_living_trainer_that_saves_nothing_for_long_has_not_died(tmp_path: Path) -> None:
    now = [1000.0]
    run = saved(tmp_path, host=socket.gethostname(), pid=os.getpid(), epoch_ns=time.time_ns())
    claim(run, spool="/spool/0")
    trial = open_trial(FarSink(tmp_path), wait=lambda _: None, clock=lambda: now[0])
    now[0] += 100_000
    assert trial.status == "running"
    assert trial.missing() == []


def test_a_dead_trainer_of_this_machine_has_died_and_leaves_its_spool(tmp_path: Path) -> None:
    run = saved(tmp_path, host=socket.gethostname(), pid=ended_process())
    claim(run, spool="/spool/0")
    trial = far_trial(tmp_path)
    assert trial.status == "died"
    (end,) = trial.missing()
    assert end.advice == f"run `tdcore upload /spool/0` on {socket.gethostname()}"


def test_a_worker_that_never_came_is_missing(tmp_path: Path) -> None:
    saved(tmp_path).end()
    RunWriter(tmp_path, worker="worker_1", epoch_ns=EPOCH_NS)
    (end,) = far_trial(tmp_path).missing()
    assert (end.worker, end.first) == ("worker_1", 0)


def test_a_process_of_this_machine_is_looked_for(tmp_path: Path) -> None:
    here = socket.gethostname()
    saved(tmp_path / "gone", host=here, pid=ended_process())
    (end,) = far_trial(tmp_path / "gone").missing()
    assert end.advice == "its process has ended and left no spool: data that it had not written is lost"
    now = time.time_ns()
    run = saved(tmp_path / "there", host=here, pid=os.getpid())
    claim(run, started_ns=now)
    assert far_trial(tmp_path / "there").missing() == []


def test_a_claim_that_cannot_be_read_gives_plain_advice(tmp_path: Path) -> None:
    for name, text in {"a": b"{", "b": b'{"spool": 3, "host": [], "pid": true, "started_ns": -1}'}.items():
        run = saved(tmp_path / name)
        run.write("attempts/0000-worker_0.json", text)
        (end,) = far_trial(tmp_path / name).missing()
        assert end.advice == "check whether it still runs"


def test_asking_costs_nothing_more_while_all_is_well(tmp_path: Path) -> None:
    saved(tmp_path, epoch_ns=time.time_ns())
    sink = FarSink(tmp_path)
    trial = open_trial(sink)
    trial.frozen = True
    sink.reset()
    assert trial.missing() == []
    assert {place for _, place in sink.requests} <= {"collections/", "collections.json"}
    sink.reset()
    assert trial.missing() == []
    assert sink.requests == []
