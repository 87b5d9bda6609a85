"""The flusher as a separate process. The argument of `main` is JSON from session/runners.py:

    {"fds": [memfds of the ring and its lanes], "pidfd": pidfd of the trainer or -1, "trainer_pid": 123,
     "out": "runs/demo", "worker": "worker_0", "attempt": 0, "spool": "/state/...",
     "options": {...FlusherOptions as JSON...}}

Exit status 0: the ring was closed or the trainer died, and all data that could be written is written. Any
other status: the flusher failed and may be restarted on the same ring. The flusher ignores the signals that
stop a trainer.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import select
import signal
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["TrainerLiveness", "main"]

_NICE = 10
_IOPRIO_IDLE = 3 << 13  # IOPRIO_CLASS_IDLE, linux/ioprio.h
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # system call number
_DEATH_POLL_SECONDS = 0.1


def main(arguments: Sequence[str]) -> int:
    """Run the flusher that `arguments[0]` describes until it ends."""
    from tdcore import _core

    job: dict[str, Any] = json.loads(arguments[0])
    consumer = _core.Consumer(job["fds"])
    consumer.report(records=0, bytes=0, rows=0, last_step=-1)  # first heartbeat, before the slow imports
    _lower_priority()

    from tdcore.flusher.destination import open_destination
    from tdcore.flusher.loop import Flusher
    from tdcore.flusher.options import FlusherOptions
    from tdcore.flusher.recorders import recorders_of

    options = FlusherOptions.from_json(job["options"])
    trainer = TrainerLiveness(job["trainer_pid"], job["pidfd"])
    gc.freeze()
    with open_destination(job) as (sink, journal):
        Flusher(
            consumer,
            sink,
            worker=job["worker"],
            attempt=job["attempt"],
            options=options,
            journal=journal,
            recorders=recorders_of(job, sink, options, job["trainer_pid"], consumer),
            run_id=job.get("run_id", ""),
        ).run(producer_dead=trainer.dead, wait=trainer.wait)
    return 0


class TrainerLiveness:
    """Detection of the end of the trainer. Threads: one.

    pidfd: pidfd of the trainer, opened by the trainer; -1 if the system does not support pidfds. Without a
    pidfd the process `pid` is polled about ten times a second: it is dead if it does not exist, is a zombie,
    or has another start time.
    """

    def __init__(self, pid: int, pidfd: int) -> None:
        self._pid = pid
        self._poller: select.poll | None = None
        self._dead = False
        self._next_poll = 0.0
        self._started = ""
        if pidfd >= 0:
            self._poller = select.poll()
            self._poller.register(pidfd, select.POLLIN)
        else:
            self._started = _start_time(pid)

    def dead(self) -> bool:
        """Whether the trainer has died."""
        if not self._dead:
            self._dead = self._poll_process() if self._poller is None else bool(self._poller.poll(0))
        return self._dead

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the trainer dies."""
        if self._poller is None or self._dead:
            time.sleep(seconds)
        elif self._poller.poll(max(1, round(seconds * 1000))):
            self._dead = True

    def _poll_process(self) -> bool:
        now = time.monotonic()
        if now < self._next_poll:
            return False
        self._next_poll = now + _DEATH_POLL_SECONDS
        started = _start_time(self._pid)
        return not started or started != self._started


def _start_time(pid: int) -> str:
    """Start time of the process in kernel ticks; "" if it does not exist or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X", "x") else fields[19]


def _lower_priority() -> None:
    """Lower the priority, allow all CPUs, and ignore signals that stop the trainer, as far as permitted."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(name, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the trainer may be pinned to one CPU
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        import ctypes

        ctypes.CDLL(None).syscall(number, 1, 0, _IOPRIO_IDLE)  # 1: a process, 0: this one
