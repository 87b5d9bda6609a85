"""`tdcore merge` joins the files of a run whose writer has ended, and refuses runs with a live writer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from tdcore.errors import ConfigError, RunNotFound
from tdcore.flusher import FlusherOptions
from tdcore.flusher.writer_lock import hold_writer_lock
from tdcore.maintenance.merge_run import merge_run
from tdcore.session import Session
from tdcore.sinks import LocalSink
from tests.flushing import Trainer, flush_all, index_ranges, payloads, read_index
from tests.test_cli import Command

FILES = 24
CLAIM = "attempts/0000-worker_0.json"


def gone() -> int:
    """Return the process id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def claim(pid: int, host: str | None = None) -> bytes:
    said = {"host": socket.gethostname() if host is None else host, "pid": pid, "started_ns": time.time_ns()}
    return json.dumps(said).encode()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run of many files whose trainer has ended."""
    trainer, sink = Trainer(slots=64), LocalSink(tmp_path / "run")
    entry = {"number": 0, "framework": "x", "workers": ["worker_0"], "world_size": 1}
    sink.put("run.json", [json.dumps({"format": 1, "run_id": "a", "attempts": [entry]}).encode()])
    sink.put(CLAIM, [claim(gone())])
    for step in range(FILES):
        trainer.capture(step, {"w": np.full(50, step, dtype=np.float32)})
    options = FlusherOptions(segment_bytes=1, merge_fan_in=1000, grace=timedelta(), final_merge=timedelta())
    flush_all(trainer, sink, options=options)
    assert len(index_ranges(sink)) == FILES
    return tmp_path / "run"


def content(run: Path) -> tuple[list[int], list[bytes]]:
    sink = LocalSink(run)
    table = read_index(sink)
    values = payloads(sink, table)
    return table["step"].to_pylist(), [values[key] for key in sorted(values)]


def test_the_small_files_of_a_run_become_few_and_hold_the_same(run: Path) -> None:
    before = content(run)
    (merged,) = merge_run(run)
    assert (merged.worker, merged.attempt, merged.before, merged.after, merged.why) == (
        "worker_0",
        0,
        FILES,
        1,
        "",
    )
    assert content(run) == before
    assert len(list((run / "data/worker_0").iterdir())) == 1
    (again,) = merge_run(run)
    assert (again.before, again.after) == (1, 1)


def test_files_of_a_process_that_lives_are_left(run: Path) -> None:
    (run / CLAIM).write_bytes(claim(os.getpid()))
    (merged,) = merge_run(run, gone=True)
    assert merged.after == FILES
    assert "still runs" in merged.why


def test_files_are_left_while_a_flusher_holds_their_lock(run: Path) -> None:
    with hold_writer_lock(run, "worker_0", 0):
        (merged,) = merge_run(run)
    assert merged.after == FILES
    assert "flusher" in merged.why


def test_files_of_another_machine_need_the_word_of_the_user(run: Path) -> None:
    (run / CLAIM).write_bytes(claim(1, host="elsewhere"))
    (merged,) = merge_run(run)
    assert merged.after == FILES
    assert "elsewhere" in merged.why
    assert "--gone" in merged.why
    (merged,) = merge_run(run, gone=True)
    assert merged.after == 1


def test_a_run_in_a_bucket_or_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bucket"):
        merge_run("s3://bucket/run")
    with pytest.raises(RunNotFound):
        merge_run(tmp_path)


def test_a_living_session_is_refused_and_its_flusher_waits_for_a_merge(tmp_path: Path) -> None:
    with Session(tmp_path / "run", configuration={}, framework="numpy", framework_version="0") as session:
        ids = np.array([session.ring.intern("w", 1)], np.uint32)
        session.ring.capture([np.ones(3, np.float32)], ids, bytes([3]), 0, 1, 0)
        while not session.progress().rows:
            time.sleep(0.01)
        (merged,) = merge_run(tmp_path / "run")
        assert "still runs" in merged.why


_KILLED = """
import os, sys
from tdcore.maintenance.merge_run import merge_run
from tdcore.sinks.local import LocalSink
left = int(sys.argv[2])
after = sys.argv[3] == "after"
def dying(original):
    def call(self, *args):
        global left
        left -= 1
        if left < 0 and not after:
            os.kill(os.getpid(), 9)
        result = original(self, *args)
        if left < 0:
            os.kill(os.getpid(), 9)
        return result
    return call
for name in ("put", "delete"):
    setattr(LocalSink, name, dying(getattr(LocalSink, name)))
merge_run(sys.argv[1])
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_merge_that_is_killed_at_any_write_leaves_a_right_run(run: Path, when: str) -> None:
    before = content(run)
    deaths = 0
    for writes in (0, 1, 2, 5, 20):
        done = subprocess.run(
            [sys.executable, "-c", _KILLED, str(run), str(writes), when],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, -9), done.stderr
        deaths += done.returncode == -9
        assert content(run) == before
    assert deaths >= 2
    (merged,) = merge_run(run)
    assert merged.after == 1
    assert content(run) == before


def test_the_command_says_what_it_did_and_fails_where_files_are_left(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tdcore = Command(monkeypatch, capsys)
    (run / CLAIM).write_bytes(claim(os.getpid()))
    refused = tdcore("merge", run)
    assert refused.code == 1
    assert "still runs" in " ".join(refused.out.split())  # lines of a terminal
    (run / CLAIM).write_bytes(claim(gone()))
    done = tdcore("merge", run, "--json")
    assert done.code == 0
    assert done.json["workers"][0]["after"] == 1
