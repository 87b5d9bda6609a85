"""The flusher in its own process: killed, orphaned, on a small disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tdcore.flusher.main import TrainerLiveness
from tdcore.sinks import LocalSink
from tests.flushing import (
    MIB,
    Trainer,
    payloads,
    read_end,
    read_index,
    spawn_flusher,
    weights,
)
from tests.waiting import PATIENCE_SECONDS, wait_until


def finish(process: subprocess.Popen[bytes]) -> str:
    """Wait for the process; check that its exit code is 0, and return its standard error."""
    _, error = process.communicate(timeout=PATIENCE_SECONDS)
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
            time.sleep(0.001)  # leaves the flusher some CPU time
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
        [sys.executable, "-c", TRAINER, str(tmp_path / "run"), way],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
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
    watch = TrainerLiveness(child.pid, -1)
    assert not watch.dead()
    child.communicate(b"\n")
    wait_until(watch.dead)
    assert watch.dead()
    mine = TrainerLiveness(os.getpid(), -1)
    assert not mine.dead()
    mine._started = "0"  # as if the process id now belonged to a process with another start time
    wait_until(mine.dead)
    zombie = subprocess.Popen([sys.executable, "-c", "pass"])
    wait_until(lambda: "Z" in Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(")")[2])
    assert TrainerLiveness(zombie.pid, -1).dead()
    zombie.wait()


def test_a_small_disk_fills_and_empties_without_harm_to_the_training(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = os.geteuid() == 0 and shutil.which("mount")
    if (
        not mounted
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]).returncode
    ):
        pytest.skip("needs the permission to mount a small file system")
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
