"""A job in this process: the ring, a trainer's captures, and a flusher on a thread that can be killed.

Time-outs and pauses are a tenth of those of a real job, so that a hundred jobs take minutes.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest import mock

from tdcore import _core
from tdcore.flusher import Flusher, FlusherOptions
from tdcore.flusher.messages import print_message
from tdcore.flusher.upload_journal import UploadJournal
from tdcore.session.attempts import claim_attempt
from tdcore.sinks.base import Buffer
from tdcore.sinks.s3 import S3Sink
from tdcore.sinks.spool import Spool
from tdcore.sinks.spool_folders import journal_path
from tdcore.sinks.spooled import SpooledSink
from tests.faults.outcome import Outcome
from tests.faults.scenario import Scenario
from tests.faults.values import Tap
from tests.faults.weather import Weather
from tests.flushing import Killed

__all__ = ["ThreadJob", "short_times"]

_WORKER = "worker_0"
_JOIN_SECONDS = 60.0
_MOST_STEPS = 400
_CALM_PAUSE = 0.05  # between steps in which the job only waits for a fault


@contextlib.contextmanager
def short_times() -> Iterator[None]:
    """Reduce the pauses of the uploader to a tenth."""
    with (
        mock.patch("tdcore.sinks.uploader._PAUSE_SECONDS", 0.1),
        mock.patch("tdcore.sinks.uploader._MAX_PAUSE_SECONDS", 0.5),
        mock.patch("tdcore.sinks.s3.store._FIRST_PAUSE", 0.02),
        mock.patch("tdcore.sinks.s3.store._LONGEST_PAUSE", 0.3),
    ):
        yield


class Doom:
    """Simulated SIGKILL for a flusher: at once, or after a number of operations of its sink."""

    def __init__(self) -> None:
        self._left: int | None = None

    def strike(self, operations: int) -> None:
        """Kill the flusher after this many operations; called from another thread."""
        self._left = operations

    def now(self, *, operation: bool = False) -> None:
        """Raise Killed if the flusher is to die here."""
        if self._left is None:
            return
        if operation:
            self._left -= 1
        if self._left <= 0:
            raise Killed

    def idle(self, seconds: float = 0.0) -> None:
        """Mark a place where the flusher waits; a kill that waits for operations may happen here."""
        if self._left is not None and self._left > 0 and random.random() < 0.05:
            self._left = 0
        self.now()


class _DeadlySink(SpooledSink):
    """A sink that dies before or after any of its operations."""

    doom: Doom

    def start(self, objects: Sequence[tuple[str, Sequence[Buffer]]]) -> Future[None]:
        self.doom.now(operation=True)
        started = super().start(objects)
        self.doom.now(operation=True)
        return started

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self.doom.now(operation=True)
        super().start([(key, parts)]).result()
        self.doom.now(operation=True)

    def get(self, key: str) -> bytes:
        self.doom.now(operation=True)
        return super().get(key)

    def start_delete(self, keys: Sequence[str]) -> Future[None]:
        self.doom.now(operation=True)
        started = super().start_delete(keys)
        self.doom.now(operation=True)
        return started


class _FlusherThread:
    """A flusher on a thread; after a kill another flusher starts, as under the supervisor."""

    def __init__(self, job: ThreadJob) -> None:
        self.killed = 0
        self._job = job
        self._doom = Doom()
        self._done = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="flusher")
        self._thread.start()

    def kill(self, operations: int) -> None:
        """See Doom.strike."""
        self._doom.strike(operations)

    def join(self) -> bool:
        """Return the result of the last flusher's run().

        Raises the error of a flusher that was not killed.
        """
        self._thread.join(_JOIN_SECONDS)
        assert not self._thread.is_alive(), f"the flusher did not end: {_stacks()}"
        if self._error is not None:
            raise self._error
        return self._done

    def _run(self) -> None:
        try:
            while True:
                try:
                    self._done = self._run_one()
                    return
                except Killed:  # noqa: PERF203 -- rare
                    self._doom = Doom()
                    self.killed += 1
        except BaseException as error:
            self._error = error

    def _run_one(self) -> bool:
        job = self._job
        consumer = _core.Consumer(job.ring.fd)
        journal = UploadJournal(journal_path(job.spool), worker=_WORKER, attempt=0)
        with contextlib.closing(job.open_sink()) as sink:
            sink.doom = self._doom
            flusher = Flusher(consumer, sink, worker=_WORKER, attempt=0, options=job.options, journal=journal)
            try:
                done = flusher.run(producer_dead=self._trainer_dead, wait=self._wait)
            finally:
                job.note(sink.report())
            journal.remove()
            return done

    def _trainer_dead(self) -> bool:
        self._doom.now()
        return self._job.dead

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)
        self._doom.idle()


class ThreadJob:
    """The job of `scenario`, at `url`, with its spool in `folder`."""

    def __init__(self, scenario: Scenario, url: str, folder: Path) -> None:
        self.scenario = scenario
        self.url = url
        self.spools = folder
        self.spool = folder / "0000"
        self.dead = False  # the trainer is dead
        self.options = _options(scenario)
        self.ring = _core.Ring(
            data_bytes=scenario.ring_bytes,
            slots=scenario.slots,
            policy=scenario.policy,
            block_timeout_seconds=20.0,
        )
        self._captured: dict[int, int] = {}  # step: number of tensors that the capture left out
        self._reports: list[dict[str, object]] = []
        self._restarts = 0

    def open_sink(self) -> _DeadlySink:
        """Return the sink of open_destination(), with shorter pauses."""
        spool = Spool(
            self.spool, url=self.url, limit_bytes=self.scenario.spool_bytes, worker=_WORKER, attempt=0
        )
        return _DeadlySink(
            S3Sink(self.url, patience=timedelta(seconds=1)),
            spool,
            spill_after=timedelta(seconds=0.5),
            relief=timedelta(seconds=0.1),
            log=lambda text: print_message(f"{_WORKER}: {text}"),
        )

    def note(self, report: dict[str, object]) -> None:
        """Record the report of a flusher that has ended or was killed."""
        self._reports.append(report)

    def run(self, weather: Weather) -> Outcome:
        """Run from the first step to the end, under these faults."""
        self._claim()
        flushers = [_FlusherThread(self)]
        self._train(flushers[0], weather)
        if self.scenario.death:
            self.dead = True
        else:
            self.ring.set_closing()
        done = flushers[0].join()
        weather.clear()
        if not done:  # the flusher timed out, and the ring still exists
            self.options = replace(self.options, end_deadline=timedelta(seconds=15))
            flushers.append(_FlusherThread(self))
            assert flushers[-1].join(), "a flusher stops although nothing blocks it"
        self._restarts = len(flushers) - 1 + sum(flusher.killed for flusher in flushers)
        left = int(self.ring.progress()["pending_records"])
        assert left == 0, f"{left} records are left in the ring"
        return self._outcome()

    def _train(self, flusher: _FlusherThread, weather: Weather) -> None:
        tap, scenario = Tap(self.ring, self.scenario.specs), self.scenario
        kills = list(scenario.kills)
        step = told = 0
        while step < scenario.steps or not (weather.calm or step >= _MOST_STEPS):
            weather.look(step)
            if told < len(kills) and kills[told].step <= step and flusher.killed == told:
                flusher.kill(kills[told].operations)
                told += 1
            self._captured[step] = tap(step)
            step += 1
            time.sleep(scenario.pause if step < scenario.steps else _CALM_PAUSE)

    def _claim(self) -> None:
        quick = self.url.replace("engine=aiobotocore", "engine=obstore")
        with contextlib.closing(S3Sink(quick)) as sink:
            claim_attempt(
                sink,
                where=self.url.partition("?")[0],
                worker=_WORKER,
                configuration={},
                framework="numpy",
                framework_version="0",
                world_size=1,
                spool=str(self.spools),
            )

    def _outcome(self) -> Outcome:
        drops = self.ring.counters()["drops"]
        self.ring.close()
        retries, spooled = Counter[str](), Counter[str]()
        for report in self._reports:
            retries.update(report["retries"])  # type: ignore[call-overload]
            spooled.update(report["spooled"])  # type: ignore[call-overload]
        return Outcome(
            captured=self._captured,
            clean=not self.dead,
            restarts=self._restarts,
            drops={reason: drop["tensors"] for reason, drop in drops.items() if drop["tensors"]},
            storage={
                "retries": sum(retries.values()),
                "spooled_objects": spooled["objects"],
                "spooled_bytes": spooled["bytes"],
            },
        )


def _stacks() -> str:
    """Return the stacks of all threads."""
    frames = sys._current_frames().values()
    return "\n".join("".join(traceback.format_stack(frame)[-4:]) for frame in frames)


def _options(scenario: Scenario) -> FlusherOptions:
    return FlusherOptions(
        segment_bytes=scenario.segment_bytes,
        visible_delay=timedelta(milliseconds=20),
        retry_delay=timedelta(milliseconds=50),
        heartbeat=timedelta(milliseconds=50),
        max_poll=timedelta(milliseconds=10),
        merge_fan_in=scenario.fan_in,
        merged_segment_bytes=scenario.merged_bytes,
        grace=timedelta(milliseconds=50),
        end_deadline=timedelta(seconds=0.7 if scenario.away_at_end else 15),
    )
