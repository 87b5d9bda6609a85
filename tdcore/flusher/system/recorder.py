"""SystemRecorder: takes samples at a fixed interval, and writes them below system/ of the run.

Each flusher samples the processes of its trainer. One flusher per host, the holder of the host lock, also
samples the machine and its GPUs. Samples are written a few seconds after they are taken
(flusher/row_file_writer.py). While the sink fails, samples wait in memory; above a limit the oldest ones are
dropped and counted in the column "lost" of the next sample. Threads: the flusher's.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from tdcore.flusher.messages import print_message
from tdcore.flusher.options import FlusherOptions
from tdcore.flusher.row_file_writer import RowFileWriter
from tdcore.flusher.system.gpus import Gpus
from tdcore.flusher.system.host_lock import HostLock
from tdcore.flusher.system.machine import Machine
from tdcore.flusher.system.processes import ProcessTree
from tdcore.format.layout import FileRange
from tdcore.format.system import SYSTEM_FILES, host_name
from tdcore.sinks.base import Sink

__all__ = ["SystemRecorder", "sample_columns"]

_MAX_WAITING = 20_000  # samples in memory, some megabytes


class SystemRecorder:
    """Samples of the trainer `trainer_pid` and its host, for the worker and attempt in `place`.

    Args:
        sink: The run.
        place: Worker and attempt; its range is ignored.
        trainer_pid: Process of the training.
        run_id: Id of the run.
        options: system_interval (0: no samples), row_delay and remote_row_delay.
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
        self._place = place
        self._host = host_name(socket.gethostname() if host is None else host)
        self._interval = options.system_interval.total_seconds()
        self._writer = RowFileWriter(
            sink, SYSTEM_FILES, self._host, place,
            encode=self._encode, run_id=run_id, options=options, continues=continues, absolute=False,
        )  # fmt: skip
        self._run_id = run_id
        own = () if trainer_pid == os.getpid() else (os.getpid(),)
        self._trainer = ProcessTree(trainer_pid, leave_out=own)
        self._flusher = ProcessTree(own[0]) if own else None
        self._lock = HostLock(run_id, place.attempt)
        self._machine: Machine | None = None  # of the holder of the lock
        self._gpus: Gpus | None = None
        self._samples: list[dict[str, Any]] = []  # not written yet
        self._first = 0  # number of the first of them, since the start of this flusher
        self._due = 0.0
        self._last: float | None = None

    def poll(self, now: float) -> None:
        """Take a sample, and write samples, when they are due. now: monotonic seconds.

        Raises:
            SinkError: The run was removed ("gone"); the caller writes it again.
        """
        if not self._interval:
            return
        if now >= self._due:
            if self._last is None:
                self._due = now
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
        if self._writer.due(now) and self._samples:
            self._write(now)

    def finish(self, now: float) -> None:
        """Write all samples, then close. Raises as poll(). No other write to the sink is in progress.

        If a bucket is not available, the samples are stored in the spool.
        """
        self._writer.wait()
        if self._samples:
            self._write(now, last=True)
        if self._samples:
            print_message(
                f"{self._place.worker}: {len(self._samples)} samples of system metrics were not written"
            )
        self.close()

    def merge_all(self) -> None:
        """Merge all files into one, after finish(). Raises as poll()."""
        self._writer.merge_all()

    def close(self) -> None:
        """Release NVML and the lock of the host. Samples that are not written are lost."""
        if self._gpus is not None:
            self._gpus.close()
        self._lock.release()

    def _take(self, now: float) -> None:
        processes, memory, seconds = self._trainer.sample(now)
        age = self._trainer.age()
        passed = None if self._last is None else now - self._last
        row: dict[str, Any] = {
            "time_ns": time.time_ns(),
            "seconds": passed,
            "lost": 0,
            "trainer_seconds": age,
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
        if len(self._samples) > _MAX_WAITING and not self._writer.busy:
            half = len(self._samples) // 2
            self._samples[half]["lost"] += half + sum(each["lost"] for each in self._samples[:half])
            del self._samples[:half]
            self._first += half

    def _write(self, now: float, last: bool = False) -> None:
        rows = list(self._samples)

        def written() -> None:
            del self._samples[: len(rows)]
            self._first += len(rows)

        self._writer.write(rows, now, written, first=self._first, last=last)

    def _encode(self, rows: list[dict[str, Any]], place: FileRange) -> memoryview:
        from tdcore.flusher.row_tables import to_parquet  # imports pyarrow

        return to_parquet(sample_columns(rows, place, self._host), SYSTEM_FILES.schema(), self._run_id)


def sample_columns(rows: list[dict[str, Any]], place: FileRange, host: str) -> dict[str, list[Any]]:
    """The samples as columns. place: worker, attempt and number of the first sample."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        "attempt": [place.attempt] * len(rows),
        "worker": [place.worker] * len(rows),
        "host": [host] * len(rows),
        "sample": list(range(place.first, place.first + len(rows))),
        **{name: [row.get(name) for row in rows] for name in names},
    }


def _percent(seconds: float | None, passed: float | None) -> float | None:
    """CPU time as a percentage of one core."""
    return None if seconds is None or not passed else 100.0 * seconds / passed
