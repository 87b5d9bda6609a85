"""Sessions for the measurements, and CPU time of this process with its children."""

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
    """CPU seconds of this process and of its running and ended children."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children_cpu_seconds() + ended.ru_utime + ended.ru_stime


def children_cpu_seconds() -> float:
    """CPU seconds of the running children, with the resolution of a clock tick."""
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
    """A session that waits for room in a full ring, and has a long timeout for its end."""
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
    """Captures a list of tensors, with values and statistics, at consecutive steps."""

    def __init__(self, session: Session, tensors: list[Any]) -> None:
        self._ring = session.ring
        self._tensors = tensors
        self._names = array("I", [self._ring.intern(f"tensor_{i}", 10) for i in range(len(tensors))])
        self._flags = bytes([3]) * len(tensors)
        self._step = 0

    def capture(self) -> float:
        """Capture one step. Returns the seconds."""
        start = time.perf_counter()
        self._ring.capture(self._tensors, self._names, self._flags, self._step, 4, self._step)
        self._step += 1
        return time.perf_counter() - start


def until_ready(session: Session) -> None:
    """Save one number, and wait until it is acknowledged, so that the flusher has started and connected."""
    Capturing(session, [np.zeros(1, dtype=np.float32)]).capture()
    deadline = time.monotonic() + _READY_SECONDS
    while session.progress().records < 1:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"the server acknowledged no data in {_READY_SECONDS:.0f} s: {session.progress().error}"
            )
        time.sleep(0.005)


def spooled_bytes(place: str, attempt: int = 0) -> int:
    """Bytes that went through the spool, from the run's end file in the bucket."""
    import json
    from contextlib import closing

    from tdcore.format.layout import end_key
    from tdcore.sinks import is_remote, open_sink

    if not is_remote(place):
        return 0
    with closing(open_sink(place)) as sink:
        document = json.loads(sink.get(end_key("worker_0", attempt)))
    return int(document["storage"]["spooled"]["bytes"])
