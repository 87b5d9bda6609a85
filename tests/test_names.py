"""The table of names: it grows with new names, and a new flusher reads it after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import tdcore as td
from tdcore import _core
from tests.waiting import wait_until

MILLION = 1_000_000


def name_of(number: int) -> str:
    return f"{number:060d}"


def test_a_million_names_of_60_characters_are_read_back() -> None:
    ring = _core.Ring(data_bytes=1 << 20, slots=16)
    consumer = _core.Consumer(ring.fds)
    before = ring.memory_bytes
    assert all(ring.intern(name_of(number), 1) == number for number in range(MILLION))
    assert MILLION * 76 < ring.memory_bytes - before < MILLION * 76 * 2
    assert consumer.names(MILLION - 1) == [(name_of(MILLION - 1), 1, "", "")]
    assert [name for name, *_ in consumer.names(0)] == [name_of(number) for number in range(MILLION)]


def test_a_table_takes_memory_for_the_names_it_has_only() -> None:
    ring = _core.Ring(data_bytes=1 << 20, slots=16)
    for number in range(100):
        ring.intern(name_of(number), 1)
    assert ring.memory_bytes < 2 << 20


_NAMES = 100_000
_TRAINER = """
import json, sys, time
from array import array
from datetime import timedelta
import numpy as np
from tdcore.flusher import FlusherOptions
from tdcore.session import Session
job = json.loads(sys.argv[1])
session = Session(
    job["out"], configuration={}, framework="none", framework_version="0",
    flusher_options=FlusherOptions(visible_delay=timedelta(hours=1)),  # nothing is written while it lives
)
ring = session.ring
ids = array("I", [ring.intern(f"{number:060d}", 10, "Linear") for number in range(job["names"])])
one = np.ones(1, dtype=np.float32)
for first in range(0, len(ids), 1000):
    piece = ids[first : first + 1000]
    ring.capture([one] * len(piece), piece, bytes([2]) * len(piece), 0, 1, 0)
print("captured", ring.progress()["records"], flush=True)
time.sleep(600)
"""


def test_a_flusher_reads_all_names_of_a_trainer_that_was_killed(tmp_path: Path) -> None:
    job = {"out": str(tmp_path / "run"), "names": _NAMES}
    with subprocess.Popen(
        [sys.executable, "-c", _TRAINER, json.dumps(job)], stdout=subprocess.PIPE
    ) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"captured 0\n"
        os.kill(trainer.pid, signal.SIGKILL)
    wait_until(lambda: list((tmp_path / "run" / "end").glob("*/*.json")))
    names = td.create_trial(str(tmp_path / "run")).tensor_names()
    assert names == [name_of(number) for number in range(_NAMES)]
