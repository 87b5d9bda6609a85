"""SystemRecorder: takes samples at a fixed interval, and writes them below system/ of the run.

Each flusher samples the processes of its trainer. One flusher per host, the holder of the host lock, also
samples the machine and its GPUs. Samples are written a few seconds after they are taken. Files of the same
size are merged, so a run has few of them. A failing sink never stops the flusher: samples wait in memory, and
above a limit the oldest ones are dropped and counted in the column "lost" of the next sample.
Threads: the flusher's. With a remote sink, writes run in another thread.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tdcore.flusher.messages import print_message
from tdcore.flusher.options import FlusherOptions
from tdcore.flusher.system.gpus import Gpus
from tdcore.flusher.system.host_lock import HostLock
from tdcore.flusher.system.machine import Machine
from tdcore.flusher.system.processes import ProcessTree
from tdcore.format.layout import FileRange, live_ranges
from tdcore.format.system import host_name, parse_system_key, system_key, system_prefix
from tdcore.sinks.base import (
    PipelinedSink,
    Sink,
    SinkError,
    SinkKeyError,
    announce,
    delete_all,
    put_straight,
)

__all__ = ["SystemRecorder"]

_MAX_WAITING = 20_000  # samples in memory, some megabytes
_MERGE_FAN_IN = 16  # files that become one


class SystemRecorder:
    """Samples of the trainer `trainer_pid` and its host, for the worker and attempt in `place`.

    Args:
        sink: The run.
        place: Worker and attempt; its range is ignored.
        trainer_pid: Process of the training.
        run_id: Id of the run.
        options: system_interval (0: no samples), system_delay and remote_system_delay.
        host: Name of the host.
        continues: Whether an earlier flusher of this attempt may have written samples.
    """

    def __init__(
        self,
        sink: Sink,
        place: FileRange,
        *,
        trainer_pid: int,
        run_id: str,
        options: FlusherOptions,
        host: str | None = None,
        continues: bool = True,
    ) -> None:
        self._sink = sink
        self._place = place
        self._run_id = run_id
        self._host = host_name(socket.gethostname() if host is None else host)
        self._interval = options.system_interval.total_seconds()
        remote = isinstance(sink, PipelinedSink)
        delay = options.remote_system_delay if remote else options.system_delay
        self._delay = delay.total_seconds()
        self._remote = remote
        self._per_file = self._delay / self._interval if self._interval else 1.0
        own = () if trainer_pid == os.getpid() else (os.getpid(),)
        self._trainer = ProcessTree(trainer_pid, leave_out=own)
        self._flusher = ProcessTree(own[0]) if own else None
        self._lock = HostLock(run_id, place.attempt)
        self._machine: Machine | None = None  # of the holder of the lock
        self._gpus: Gpus | None = None
        self._samples: list[dict[str, Any]] = []  # not written yet
        self._number = None if continues else 0  # of the next sample; None before the files are listed
        self._files: list[FileRange] = []
        self._due = 0.0
        self._last: float | None = None
        self._write_at = 0.0
        self._writing: Future[Callable[[], None]] | None = None
        self._failing = False

    def poll(self, now: float) -> None:
        """Take a sample, and write samples, when they are due. now: monotonic seconds.

        Raises:
            SinkError: The run was removed ("gone"); the caller writes it again.
        """
        if not self._interval:
            return
        if now >= self._due:
            if self._last is None:
                self._due, self._write_at = now, now + self._delay
            self._due = max(self._due + self._interval, now + self._interval / 2)
            try:
                self._take(now)
            except Exception as error:  # a denied permission must not stop the flusher
                print_message(
                    f"{self._place.worker}: system metrics are off from here: {type(error).__name__}: {error}"
                )
                self._interval = 0.0
                return
            self._last = now
        if self._writing is not None:
            if self._writing.done():
                self._complete(now)
        elif now >= self._write_at and self._samples:
            self._start_write(now)

    def finish(self, now: float) -> None:
        """Write all samples, then close. Raises as poll(). No other write to the sink is in progress.

        If a bucket is not available, the samples are stored in the spool.
        """
        if self._writing is not None:
            self._writing.exception()  # waits
            self._complete(now)
        if self._samples:
            rows = list(self._samples)
            self._run(lambda: self._write(rows, last=True), now, wait=True)
        if self._samples:
            print_message(
                f"{self._place.worker}: {len(self._samples)} samples of system metrics were not written"
            )
        self.close()

    def merge_all(self, now: float) -> None:
        """Merge all files into one, after finish(). Raises as poll()."""
        if self._writing is not None:
            self._writing.exception()
            self._complete(now)
        if self._can_merge(self._files):
            self._run(lambda: self._merge(self._files), now, wait=True)

    def close(self) -> None:
        """Release NVML and the lock of the host. Samples that are not written are lost."""
        if self._gpus is not None:
            self._gpus.close()
        self._lock.release()

    def _take(self, now: float) -> None:
        processes, memory, seconds = self._trainer.sample(now)
        passed = None if self._last is None else now - self._last
        row: dict[str, Any] = {
            "time_ns": time.time_ns(),
            "seconds": passed,
            "lost": 0,
            "trainer_processes": processes,
            "trainer_memory": memory,
            "trainer_cpu_percent": _percent(seconds, passed),
        }
        if self._flusher is not None:
            _, memory, seconds = self._flusher.sample(now)
            row |= {"flusher_memory": memory, "flusher_cpu_percent": _percent(seconds, passed)}
        if self._lock.held(now):
            if self._machine is None or self._gpus is None:
                self._machine, self._gpus = Machine(), Gpus()
            row |= {**self._machine.sample(), **self._gpus.sample()}
        self._samples.append(row)
        if len(self._samples) > _MAX_WAITING and self._writing is None:
            half = len(self._samples) // 2
            self._samples[half]["lost"] += half + sum(each["lost"] for each in self._samples[:half])
            del self._samples[:half]

    # Writing

    def _start_write(self, now: float, wait: bool = False) -> None:
        rows = list(self._samples)
        self._write_at = now + self._delay
        self._run(lambda: self._write(rows), now, wait=wait)

    def _run(self, work: Callable[[], Callable[[], None]], now: float, *, wait: bool) -> None:
        """Do `work`, in another thread if the sink is remote; it returns a function for this thread."""
        end: Future[Callable[[], None]] = Future()

        def run() -> None:
            try:
                end.set_result(work())
            except BaseException as error:
                end.set_exception(error)

        self._writing = end
        if self._remote and not wait:
            threading.Thread(target=run, name="tdcore-system", daemon=True).start()
            return
        run()
        self._complete(now)

    def _complete(self, now: float) -> None:
        assert self._writing is not None
        end, self._writing = self._writing, None
        try:
            end.result()()
        except Exception as error:  # a SinkError, or a fault of tdcore: neither may stop the flusher
            if isinstance(error, SinkError) and error.kind == "gone" and not isinstance(error, SinkKeyError):
                self._files = []
                raise
            if not self._failing and not isinstance(error, SinkError):
                print_message(f"{self._place.worker}: system metrics: {type(error).__name__}: {error}")
            self._failing = True
            return
        self._failing = False
        group = self._files[-_MERGE_FAN_IN:]
        levels = {_level(each, self._per_file) for each in group}
        if len(group) == _MERGE_FAN_IN and len(levels) == 1 and self._can_merge(group):
            self._run(lambda: self._merge(group), now, wait=False)

    def _can_merge(self, group: list[FileRange]) -> bool:
        """Whether the files of a group have no gap between them, and none is still in a spool."""
        if len(group) < 2 or (isinstance(self._sink, PipelinedSink) and self._sink.waiting):
            return False
        return all(after.first == before.last + 1 for before, after in pairwise(group))

    # In the thread of the write: the functions below use the sink and what only they change.

    def _write(self, rows: list[dict[str, Any]], last: bool = False) -> Callable[[], None]:
        from tdcore.flusher.system.table import to_parquet  # imports pyarrow

        files = self._files if self._number is not None else self._existing()
        first = self._number if self._number is not None else (files[-1].last + 1 if files else 0)
        place = replace(self._place, first=first, last=first + len(rows) - 1)
        key, data = system_key(self._host, place), to_parquet(rows, place, self._host, self._run_id)
        if last and isinstance(self._sink, PipelinedSink):
            self._put_or_spool(self._sink, key, data)
        else:
            put_straight(self._sink, key, [data])

        def written() -> None:
            self._files = [*files, place]
            self._number = place.last + 1
            del self._samples[: len(rows)]

        return written

    def _put_or_spool(self, sink: PipelinedSink, key: str, data: memoryview) -> None:
        try:
            sink.start([(key, [data])]).result()
        except SinkError:
            sink.start_over()
            raise

    def _existing(self) -> list[FileRange]:
        """Files of earlier flushers of this attempt."""
        prefix = system_prefix(self._host, self._place.worker)
        self._sink.clean(prefix)
        parsed = [found for key in self._sink.list(prefix) if (found := parse_system_key(key)) is not None]
        mine = {place for _, place in parsed if place.attempt == self._place.attempt}
        live = live_ranges(mine)
        delete_all(self._sink, [system_key(self._host, each) for each in mine.difference(live)])
        return live

    def _merge(self, group: list[FileRange]) -> Callable[[], None]:
        from tdcore.flusher.system.table import merged

        keys = [system_key(self._host, each) for each in group]
        place = replace(group[0], last=group[-1].last)
        announce(self._sink, keys)
        data = merged([self._sink.get(key) for key in keys], self._run_id)
        put_straight(self._sink, system_key(self._host, place), [data])
        delete_all(self._sink, keys)

        def replaced() -> None:
            self._files = [each for each in self._files if each not in group] + [place]

        return replaced


def _percent(seconds: float | None, passed: float | None) -> float | None:
    """CPU time as a percentage of one core."""
    return None if seconds is None or not passed else 100.0 * seconds / passed


def _level(place: FileRange, per_file: float) -> int:
    """How often the samples of a file were merged. per_file: samples of a file that was never merged."""
    length, number = float(place.last - place.first + 1), 0
    while length > per_file * _MERGE_FAN_IN / 2:
        length, number = length / _MERGE_FAN_IN, number + 1
    return number
