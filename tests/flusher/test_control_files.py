"""Entries of control/ that are not plain files: the flusher logs one line, ignores them and continues."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tdcore.format.layout import capture_key, stop_key
from tdcore.sinks import LocalSink
from tests.flushing import MIB, Trainer, payloads, read_end, read_index, spawn_flusher, weights
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(120)


def as_fifo(path: Path) -> None:
    os.mkfifo(path)


def as_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)  # sparse: takes no space


def as_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def as_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [as_fifo, as_huge, as_link_to_a_device, as_loop])
def test_a_flusher_process_ignores_it_once_records_everything_and_ends(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    run = tmp_path / "run"
    (run / "control").mkdir(parents=True)
    make(run / stop_key(0))
    make(run / capture_key(0, 0))
    trainer, sink = Trainer(data_bytes=4 * MIB), LocalSink(run)
    process = spawn_flusher(trainer.ring.fd, str(run))
    for step in range(300):
        assert trainer.capture(step, weights(step, count=4, elements=2000)) == 0
    found: list[str] = []

    def taken() -> bool:
        request = trainer.ring.take_request()
        found.extend([request] if request else [])
        return bool(found)

    wait_until(taken)
    assert "unreadable" in json.loads(found[0])
    sink.put_new(capture_key(0, 1), [b"the next"])
    found.clear()
    wait_until(taken)
    assert found == ["the next"]
    assert trainer.ring.stop_request() is None
    trainer.ring.set_closing()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0
    lines = error.decode().splitlines()
    assert len(lines) == 2
    assert all("a request is ignored: control/" in line for line in lines)
    assert len(payloads(sink, read_index(sink))) == 1200
    assert read_end(sink)["drops"] == {}


def test_a_file_that_takes_the_place_of_a_fifo_stops_the_training(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "control").mkdir(parents=True)
    os.mkfifo(run / stop_key(0))
    trainer = Trainer()
    process = spawn_flusher(trainer.ring.fd, str(run))
    trainer.capture(0, weights(0))
    wait_until(lambda: trainer.ring.progress()["rows"] == 3)
    assert trainer.ring.stop_request() is None
    LocalSink(run).put(stop_key(0), [b'{"reason": "enough"}'])
    wait_until(lambda: trainer.ring.stop_request() is not None)
    trainer.ring.set_closing()
    process.communicate(timeout=60)
    assert process.returncode == 0
