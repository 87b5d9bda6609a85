"""Several lanes (one ring per device) and one flusher: killed flushers, a killed trainer, early commits."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from tdcore import _core
from tdcore.session import RingConfig, Session
from tdcore.sinks import LocalSink, MemorySink
from tests.flushing import (
    MIB,
    QUICK,
    FlusherThread,
    Trainer,
    payloads,
    read_end,
    read_index,
    spawn_flusher,
    weights,
)
from tests.lanes import LaneWriter
from tests.trainers.checks import flushers_of
from tests.waiting import PATIENCE_SECONDS, wait_until


class LanedTrainer(Trainer):
    """A trainer with two devices."""

    def __init__(self, *, data_bytes: int = 8 * MIB) -> None:
        self.ring = _core.Ring(
            data_bytes=data_bytes,
            slots=1024,
            policy="block",
            block_timeout_seconds=20.0,
            device_lanes=2,
            device_lane_bytes=data_bytes,
            device_lane_slots=256,
        )
        self.devices = [LaneWriter(self.ring, fd) for fd in self.ring.fds[1:]]


@pytest.fixture
def laned() -> Iterator[LanedTrainer]:
    made = LanedTrainer()
    yield made
    made.ring.close()


def tensors_of(lane: int, step: int, elements: int = 500) -> dict[str, npt.NDArray[Any]]:
    return {f"gpu{lane}.{at}": np.full(elements, step * 10 + at, np.float32) for at in range(3)}


def finish(process: subprocess.Popen[bytes]) -> str:
    _, error = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, error.decode()
    return error.decode()


def test_rows_and_payloads_of_all_lanes_are_in_one_index_and_the_same_segments(
    laned: LanedTrainer, sink: MemorySink
) -> None:
    flusher = FlusherThread(laned, sink)
    for step in range(20):
        laned.capture(step, weights(step))
        for lane, device in enumerate(laned.devices):
            elements = 60_000 if step % 5 == 0 else 500
            record = device.reserve(step, tensors_of(lane, step, elements))
            assert record is not None
            record.finish()
    laned.ring.set_closing()
    assert flusher.join()
    table = read_index(sink)
    found = payloads(sink, table)
    assert len(found) == 20 * 9
    for (name, step, _), data in found.items():
        if name.startswith("gpu"):
            elements = 60_000 if step % 5 == 0 else 500
            assert data == tensors_of(int(name[3]), step, elements)[name].tobytes()
    assert read_end(sink)["clean"]


def test_what_a_device_has_not_finished_delays_neither_the_host_nor_other_devices(
    laned: LanedTrainer, sink: MemorySink
) -> None:
    flusher = FlusherThread(laned, sink)
    open_record = laned.devices[0].reserve(0, tensors_of(0, 0))
    assert open_record is not None
    for step in range(5):
        laned.capture(step, weights(step))
        record = laned.devices[1].reserve(step, tensors_of(1, step))
        assert record is not None
        record.finish()
    wait_until(lambda: laned.ring.progress()["rows"] == 30)
    assert laned.pending() == 1
    open_record.finish()
    laned.ring.set_closing()
    assert flusher.join()
    assert len(payloads(sink, read_index(sink))) == 33


def test_an_early_commit_is_counted_and_its_values_are_waited_for(
    laned: LanedTrainer, sink: MemorySink
) -> None:
    flusher = FlusherThread(laned, sink)
    record = laned.devices[0].reserve(3, tensors_of(0, 3))
    assert record is not None
    record.write_word()
    wait_until(lambda: laned.ring.early_commits == 1)
    record.write_values()
    laned.ring.set_closing()
    assert flusher.join()
    assert laned.ring.early_commits == 1
    found = payloads(sink, read_index(sink))
    assert found[("gpu0.2", 3, 0)] == tensors_of(0, 3)["gpu0.2"].tobytes()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_flusher_process_loses_and_doubles_nothing_of_any_lane(tmp_path: Path, seed: int) -> None:
    trainer, sink = LanedTrainer(data_bytes=4 * MIB), LocalSink(tmp_path / "run")
    random = np.random.default_rng(seed)
    captured: set[tuple[str, int]] = set()
    in_flight: list[list[Any]] = [[], []]
    step = 0

    def train() -> None:
        nonlocal step
        assert trainer.capture(step, weights(step, count=2, elements=200)) == 0
        captured.update((f"fc{at}.weight", step) for at in range(2))
        for lane, device in enumerate(trainer.devices):
            # large ones are written directly from the ring
            elements = 80_000 if random.random() < 0.1 else 300
            record = device.reserve(step, {f"gpu{lane}": np.full(elements, step, np.float32)})
            if record is not None:
                captured.add((f"gpu{lane}", step))
                in_flight[lane].append(record)
            while in_flight[lane] and random.random() < 0.6:  # in any order, as the streams of devices finish
                in_flight[lane].pop(int(random.integers(len(in_flight[lane])))).finish()
        step += 1
        time.sleep(0.001)  # leaves the flusher some CPU time

    process = spawn_flusher(trainer.ring.fds, str(tmp_path / "run"))
    for _ in range(4):
        until = trainer.ring.progress()["rows"] + int(random.integers(1, 100))
        while trainer.ring.progress()["rows"] < until:
            train()
        time.sleep(float(random.uniform(0, 0.02)))
        process.kill()
        process.communicate()
        process = spawn_flusher(trainer.ring.fds, str(tmp_path / "run"))
    for record in (*in_flight[0], *in_flight[1]):
        record.finish()
    trainer.ring.set_closing()
    finish(process)
    table = read_index(sink)
    rows = list(zip(table["name"].to_pylist(), table["step"].to_pylist(), strict=True))
    assert len(rows) == len(set(rows)) == len(captured)
    assert set(rows) == captured
    found = payloads(sink, table)
    assert len(found) == len(captured)
    for (name, at, _), data in found.items():
        if name.startswith("gpu"):
            assert set(np.frombuffer(data, np.float32)) == {float(at)}
    end = read_end(sink)
    assert (end["flusher_restarts"], end["drops"], end["gaps"]) == (4, {}, [])


TRAINER = """
import os, sys
from tests.flusher.test_lanes import LanedTrainer, tensors_of
from tests.flushing import spawn_flusher, weights
trainer = LanedTrainer()
flusher = spawn_flusher(trainer.ring.fds, sys.argv[1], pidfd=os.pidfd_open(os.getpid()))
for step in range(30):
    assert trainer.capture(step, weights(step)) == 0
    for lane, device in enumerate(trainer.devices):
        record = device.reserve(step, tensors_of(lane, step))
        if step % 3 != lane:  # the others are still on their way
            record.finish()
print(flusher.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_the_devices_of_a_killed_trainer_had_finished_is_kept_and_the_rest_is_counted(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, str(tmp_path / "run")], capture_output=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    flusher = Path(f"/proc/{int(done.stdout)}")
    wait_until(lambda: not flusher.exists() or "Z" in (flusher / "stat").read_text())
    sink = LocalSink(tmp_path / "run")
    found = payloads(sink, read_index(sink))
    expected = {(name, step, 0) for step in range(30) for name in weights(step)}
    expected |= {
        (name, step, 0)
        for step in range(30)
        for lane in range(2)
        if step % 3 != lane
        for name in tensors_of(lane, step)
    }
    assert set(found) == expected
    end = read_end(sink)
    assert not end["clean"]
    assert end["drops"]["torn"]["tensors"] == 20


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_session_with_devices_hands_their_lanes_to_its_flusher(
    tmp_path: Path, kind: Literal["process", "thread"]
) -> None:
    with Session(
        tmp_path / "run",
        configuration={},
        framework="numpy",
        framework_version="0",
        ring=RingConfig(ring_bytes=8 * MIB, device_lanes=2, device_ring_bytes=8 * MIB),
        flusher=kind,
        flusher_options=QUICK,
    ) as session:
        devices = [LaneWriter(session.ring, fd) for fd in session.ring.fds[1:]]
        for step in range(4):
            if step == 2 and kind == "process":  # the next flusher gets the reserved records, too
                wait_until(lambda: session.progress().flusher_epoch == 1)
                for process in flushers_of(session.out_dir):
                    process.kill()
                wait_until(lambda: session.progress().flusher_epoch == 2)
            for lane, device in enumerate(devices):
                record = device.reserve(step, tensors_of(lane, step))
                assert record is not None
                record.finish()
    sink = LocalSink(tmp_path / "run")
    assert len(payloads(sink, read_index(sink))) == 4 * 2 * 3
    assert read_end(sink)["clean"]
