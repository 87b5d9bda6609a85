"""Sessions as the measurements need them, and CPU time of this process with its children."""

from __future__ import annotations

import os
import resource
import time
from array import array
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tdcore.flusher import FlusherOptions
from tdcore.session import RingConfig, Session

_READY_SECONDS = 60.0


def client_cpu_seconds() -> float:
    """CPU seconds of this process, of its children that run, and of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children_cpu_seconds() + ended.ru_utime + ended.ru_stime


def children_cpu_seconds() -> float:
    """CPU seconds of the children that run, to a clock tick."""
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def open_session(
    place: str,
    *,
    ring_bytes: int = 256 << 20,
    flusher: Literal["process", "thread"] = "process",
    options: FlusherOptions | None = None,
) -> Session:
    """A session at a folder or URL that waits for a full ring rather than dropping, and long for its end."""
    return Session(
        place,
        configuration={},
        framework="none",
        framework_version="0",
        ring=RingConfig(ring_bytes=ring_bytes, block_timeout=timedelta(minutes=2)),
        flusher=flusher,
        flusher_options=options,
        close_timeout=timedelta(minutes=5),
    )


class Capturing:
    """Captures a list of tensors, values and statistics, at one step after the other."""

    def __init__(self, session: Session, tensors: list[Any]) -> None:
        self._ring = session.ring
        self._tensors = tensors
        self._names = array("I", [self._ring.intern(f"tensor_{i}", 10) for i in range(len(tensors))])
        self._flags = bytes([3]) * len(tensors)
        self._step = 0

    def capture(self) -> float:
        """One step; seconds."""
        start = time.perf_counter()
        self._ring.capture(self._tensors, self._names, self._flags, self._step, 4, self._step)
        self._step += 1
        return time.perf_counter() - start


def until_ready(session: Session) -> None:
    """Saves one number, and waits until it is acknowledged: then the flusher has started and is connected."""
    Capturing(session, [np.zeros(1, dtype=np.float32)]).capture()
    deadline = time.monotonic() + _READY_SECONDS
    while session.progress().records < 1:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"nothing was acknowledged in {_READY_SECONDS:.0f} s: {session.progress().error}"
            )
        time.sleep(0.005)


def spooled_bytes(place: str, attempt: int = 0) -> int:
    """Bytes that went through the spool, as the run's end file in the bucket says."""
    import json
    from contextlib import closing

    from tdcore.format.layout import end_key
    from tdcore.sinks import is_remote, open_sink

    if not is_remote(place):
        return 0
    with closing(open_sink(place)) as sink:
        document = json.loads(sink.get(end_key("worker_0", attempt)))
    return int(document["storage"]["spooled"]["bytes"])
