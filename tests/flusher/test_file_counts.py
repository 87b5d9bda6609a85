"""The number of files is bounded throughout a run: at a high rate, after kills and stops, and at the end."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore import _core
from tdcore.flusher import Flusher, FlusherOptions
from tdcore.flusher.compactor import Compactor
from tdcore.flusher.index_summary import IndexSummary
from tdcore.flusher.ledger import IndexEntry, Ledger
from tdcore.flusher.merge import next_group
from tdcore.format.layout import FileRange, data_prefix, index_prefix
from tdcore.session import RingConfig, Session
from tdcore.sinks import MemorySink
from tests.flushing import Trainer, read_index
from tests.trainers.checks import flushers_of
from tests.waiting import wait_until

FAN_IN = 4
EACH_A_FILE = FlusherOptions(segment_bytes=1, merge_fan_in=FAN_IN, grace=timedelta())


class CountingSink(MemorySink):
    """A sink that records the largest number of objects that existed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def put(self, key: str, parts: Any) -> None:
        super().put(key, parts)
        self.most = max(self.most, len(self.objects))


def test_a_flusher_that_always_has_something_to_write_merges_all_the_same() -> None:
    trainer, sink = Trainer(slots=2048), CountingSink()
    for step in range(300):
        trainer.capture(step, {"w": np.full(20, step, dtype=np.float32)})
    consumer = _core.Consumer(trainer.ring.fds)

    def no_quiet_moment(seconds: float) -> None:
        trainer.ring.set_closing()

    Flusher(consumer, sink, worker="worker_0", attempt=0, options=EACH_A_FILE).run(wait=no_quiet_moment)
    assert sink.most < 100  # without merging there would be 600
    assert read_index(sink)["step"].to_pylist() == list(range(300))


def test_a_flusher_that_starts_late_catches_up_at_the_end() -> None:
    sink = CountingSink()
    left_behind = Trainer(slots=2048)
    for step in range(250):
        left_behind.capture(step, {"w": np.full(20, step, dtype=np.float32)})
    never = FlusherOptions(segment_bytes=1, merge_fan_in=10_000, grace=timedelta(), final_merge=timedelta())
    left_behind.ring.set_closing()
    Flusher(_core.Consumer(left_behind.ring.fds), sink, worker="worker_0", attempt=0, options=never).run()
    ledger = Ledger(sink, worker="worker_0", attempt=0)
    ledger.recover()
    assert len(ledger.entries) == 250
    options = FlusherOptions(merge_fan_in=FAN_IN, grace=timedelta(), final_merge=timedelta())
    Compactor(sink, ledger, options, time.monotonic).finish()
    assert len(sink.list(index_prefix("worker_0"))) <= 2 * FAN_IN
    assert len(sink.list(data_prefix("worker_0"))) <= 2 * FAN_IN
    assert read_index(sink)["step"].to_pylist() == list(range(250))


@pytest.mark.parametrize("seed", range(20))
def test_files_of_levels_in_any_order_become_few(seed: int) -> None:
    chance = random.Random(seed)
    entries = [
        IndexEntry(
            range=FileRange("worker_0", 0, at, at),
            size=1000,
            summary=IndexSummary(rows=1, records=1, level=chance.randrange(5)),
        )
        for at in range(chance.randrange(50, 400))
    ]
    options = FlusherOptions(merge_fan_in=FAN_IN)
    while group := next_group(entries, options):
        at = entries.index(group[0])
        summary = IndexSummary.total(each.summary for each in group if each.summary is not None)
        place = FileRange("worker_0", 0, group[0].range.first, group[-1].range.last)
        level = IndexSummary(rows=summary.rows, records=summary.records, level=summary.level + 1)
        entries[at : at + len(group)] = [IndexEntry(range=place, size=1000, summary=level)]
    assert len(entries) <= (FAN_IN - 1) * 6


class Busy:
    """A session whose thread captures as fast as the flusher reads; each record becomes its own file."""

    def __init__(self, out: Path) -> None:
        self.session = Session(
            out,
            configuration={},
            framework="numpy",
            framework_version="0",
            ring=RingConfig(ring_bytes=1 << 20, slots=256),
            flusher_options=FlusherOptions(
                segment_bytes=1, visible_delay=timedelta(), grace=timedelta(milliseconds=100)
            ),
        )
        self.out = out
        self.steps = self.most = 0
        self._stop = False
        self._ids = np.array([self.session.ring.intern("w", 1)], np.uint32)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop:
            value = np.full(20, self.steps, np.float32)
            self.session.ring.capture([value], self._ids, bytes([3]), self.steps, 1, self.steps)
            self.steps += 1

    def until(self, steps: int) -> None:
        """Wait until `steps` more steps are on disk, and count files meanwhile."""
        goal = self.session.progress().rows + steps

        def reached() -> bool:
            self.most = max(self.most, self.files())
            return self.session.progress().rows >= goal

        wait_until(reached, f"{steps} more steps were written")

    def files(self) -> int:
        folders = [self.out / folder / "worker_0" for folder in ("index", "data")]
        return sum(len(os.listdir(folder)) for folder in folders if folder.exists())

    def close(self) -> None:
        self._stop = True
        self._thread.join()
        self.session.close(timedelta(seconds=60))


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Busy]:
    made = Busy(tmp_path / "run")
    yield made
    made.close()


def test_a_flusher_process_killed_and_stopped_at_a_high_rate_leaves_few_files(busy: Busy) -> None:
    for life in range(4):
        busy.until(60)
        (flusher,) = flushers_of(busy.out)
        if life % 2:
            flusher.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            flusher.send_signal(signal.SIGCONT)
        else:
            flusher.kill()
            wait_until(lambda gone=flusher: not gone.is_running(), "the flusher was gone")  # type: ignore[misc]
    busy.until(60)
    busy.close()
    # two files for each write of the last 100 ms, and the files that wait to be merged
    assert busy.most < 700
    assert busy.files() <= 2 * 2 * 16
    from tdcore.trial import create_trial

    assert create_trial(str(busy.out)).tensor("w").steps() == list(range(busy.steps))
