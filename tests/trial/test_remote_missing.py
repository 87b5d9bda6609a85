"""Trial.missing: what should be there and is not, and where the rest may be."""

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
from tdcore.trial.opening import open_trial
from tests.trial.far import FarSink
from tests.trial.writer import EPOCH_NS, RunWriter

ONE = np.ones(3, dtype=np.float32)


def far_trial(root: Path) -> Trial:
    return open_trial(FarSink(root), wait=lambda _: None)


def claim(run: RunWriter, **fields: Any) -> None:
    """Changes what the worker said of itself."""
    key = f"attempts/{run.attempt:04d}-{run.worker}.json"
    run.put(key, json.loads((run.root / key).read_text()) | fields)


def saved(root: Path, **options: Any) -> RunWriter:
    """A run, begun long ago, that saved three steps in a file each."""
    run = RunWriter(root, **{"epoch_ns": EPOCH_NS, **options})
    for step in range(3):
        run.add("a", ONE, step=step)
        run.flush()
    return run


def ended_process() -> int:
    """A process number that nobody has any more."""
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
    assert end.advice == "if it does not run any more, run `tdcore upload '/var/my spool/0'` on node-7"


def test_only_the_latest_attempt_is_expected_to_end(tmp_path: Path) -> None:
    saved(tmp_path)
    saved(tmp_path, attempt=1, worker="worker_1")
    (end,) = far_trial(tmp_path).missing()
    assert (end.worker, end.attempt, end.what) == ("worker_1", 1, "end")
    assert end.advice == "see whether it still runs on test"


def test_a_worker_that_never_came_is_missing(tmp_path: Path) -> None:
    saved(tmp_path).end()
    RunWriter(tmp_path, worker="worker_1", epoch_ns=EPOCH_NS)
    (end,) = far_trial(tmp_path).missing()
    assert (end.worker, end.first) == ("worker_1", 0)


def test_a_process_of_this_machine_is_looked_for(tmp_path: Path) -> None:
    here = socket.gethostname()
    saved(tmp_path / "gone", host=here, pid=ended_process())
    (end,) = far_trial(tmp_path / "gone").missing()
    assert end.advice == "its process is gone and left no spool: what was not written by then is lost"
    now = time.time_ns()
    run = saved(tmp_path / "there", host=here, pid=os.getpid())
    claim(run, started_ns=now)
    assert far_trial(tmp_path / "there").missing() == []


def test_a_claim_that_cannot_be_read_gives_plain_advice(tmp_path: Path) -> None:
    for name, text in {"a": b"{", "b": b'{"spool": 3, "host": [], "pid": true, "started_ns": -1}'}.items():
        run = saved(tmp_path / name)
        run.write("attempts/0000-worker_0.json", text)
        (end,) = far_trial(tmp_path / name).missing()
        assert end.advice == "see whether it still runs"


def test_asking_costs_nothing_more_while_all_is_well(tmp_path: Path) -> None:
    saved(tmp_path, epoch_ns=time.time_ns())
    sink = FarSink(tmp_path)
    trial = open_trial(sink)
    trial.frozen = True
    sink.reset()
    assert trial.missing() == []
    assert sink.requests == []
