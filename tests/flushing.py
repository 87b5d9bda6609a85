"""Shared parts of the tests of the flusher.

A trainer's side of a ring, a flusher in a thread, and a plain reader.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy

from tdcore import _core
from tdcore.flusher import Flusher, FlusherOptions
from tdcore.flusher.upload_journal import UploadJournal
from tdcore.format.layout import data_prefix, end_key, index_prefix, live_ranges, parse_index_key, segment_key
from tdcore.sinks import Sink, SinkError
from tests.signals import default_signals
from tests.waiting import PATIENCE_SECONDS

MIB = 1024 * 1024
WANT_PAYLOAD, WANT_STATS = 1, 2
QUICK = FlusherOptions(
    visible_delay=timedelta(milliseconds=5),
    retry_delay=timedelta(milliseconds=10),
    stop_poll=timedelta(milliseconds=5),
    heartbeat=timedelta(milliseconds=5),
    max_poll=timedelta(milliseconds=2),
    grace=timedelta(),
)


class Trainer:
    """A ring, and the calls that a hook makes on it."""

    def __init__(self, *, data_bytes: int = 8 * MIB, slots: int = 1024, policy: str = "block") -> None:
        self.ring = _core.Ring(data_bytes=data_bytes, slots=slots, policy=policy, block_timeout_seconds=20.0)

    def capture(
        self,
        step: int,
        tensors: Mapping[str, npt.NDArray[Any] | None],
        *,
        kind: int = 1,
        mode: int = 1,
        flags: int = WANT_PAYLOAD | WANT_STATS,
    ) -> int:
        """Capture once; return the number of tensors that were not kept as requested."""
        ids = np.array([self.ring.intern(name, kind, "Linear") for name in tensors], dtype=np.uint32)
        wanted = np.full(len(ids), flags, dtype=np.uint8)
        return self.ring.capture(list(tensors.values()), ids, wanted, step, mode, step)

    def pending(self) -> int:
        """Return the number of records that the flusher has not released."""
        return int(self.ring.progress()["pending_records"])


class FlusherThread:
    """A flusher on its own thread; join() returns the result of run() or raises its exception."""

    def __init__(
        self,
        trainer: Trainer,
        sink: Sink,
        *,
        options: FlusherOptions = QUICK,
        producer_dead: Callable[[], bool] = lambda: False,
        attempt: int = 0,
        journal: UploadJournal | None = None,
    ) -> None:
        self.consumer = _core.Consumer(trainer.ring.fds)
        self.flusher = Flusher(
            self.consumer, sink, worker="worker_0", attempt=attempt, options=options, journal=journal
        )
        self._producer_dead = producer_dead
        self._result: list[bool] = []
        self._error: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self.flusher.run(producer_dead=self._producer_dead))
        except BaseException as error:
            self._error.append(error)

    def join(self) -> bool:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the flusher did not end"
        if self._error:
            raise self._error[0]
        return self._result[0]


def flush_all(trainer: Trainer, sink: Sink, *, options: FlusherOptions = QUICK) -> bool:
    """Close the ring and run a flusher to its end, on this thread."""
    trainer.ring.set_closing()
    consumer = _core.Consumer(trainer.ring.fds)
    return Flusher(consumer, sink, worker="worker_0", attempt=0, options=options).run()


def index_ranges(sink: Sink, attempt: int = 0) -> list[tuple[int, int]]:
    """Return the ticket ranges of the live index files, oldest first."""
    found = (parse_index_key(key) for key in sink.list(index_prefix("worker_0")))
    live = live_ranges(each for each in found if each is not None and each.attempt == attempt)
    return [(each.first, each.last) for each in live]


def read_index(sink: Sink, attempt: int = 0) -> pa.Table:
    """Return all rows, in ticket order. Checks that the ranges of index files are contiguous."""
    found = (parse_index_key(key) for key in sink.list(index_prefix("worker_0")))
    live = live_ranges(each for each in found if each is not None and each.attempt == attempt)
    expected = 0
    for each in live:
        assert each.first == expected, f"hole before ticket {each.first}"
        expected = each.last + 1
    tables = [pq.read_table(pa.BufferReader(sink.get(each.index_key))) for each in live]
    return pa.concat_tables(tables).replace_schema_metadata(None) if tables else pa.table({})


def payloads(sink: Sink, table: pa.Table) -> dict[tuple[str, int, int], bytes]:
    """Return (name, step, part) -> bytes of every row with a segment; checks sizes and checksums."""
    segments: dict[str, bytes] = {}
    found: dict[tuple[str, int, int], bytes] = {}
    columns = table.select(["name", "step", "part", "segment", "offset", "nbytes", "crc32c"]).to_pylist()
    for row in columns:
        if row["segment"] is None:
            continue
        if row["segment"] not in segments:
            segments[row["segment"]] = sink.get(segment_key("worker_0", row["segment"]))
        data = segments[row["segment"]][row["offset"] : row["offset"] + row["nbytes"]]
        assert len(data) == row["nbytes"]
        assert _core.crc32c(data) == row["crc32c"]
        key = (row["name"], row["step"], row["part"])
        assert key not in found, "a payload is there twice"
        found[key] = data
    return found


def segment_tensors(sink: Sink) -> dict[str, npt.NDArray[Any]]:
    """Return every tensor of every segment as the safetensors library reads it, without padding."""
    found: dict[str, npt.NDArray[Any]] = {}
    for key in sink.list(data_prefix("worker_0")):
        for name, value in safetensors.numpy.load(sink.get(key)).items():
            if not name.startswith("__pad__"):
                assert name not in found
                found[name] = value
    return found


def read_end(sink: Sink, attempt: int = 0) -> dict[str, Any]:
    """Return the end document."""
    document: dict[str, Any] = json.loads(sink.get(end_key("worker_0", attempt)))
    return document


def spawn_flusher(
    fds: int | Sequence[int],
    out: str,
    *,
    pid: int | None = None,
    pidfd: int = -1,
    options: FlusherOptions = QUICK,
) -> subprocess.Popen[bytes]:
    """Start a flusher process with the arguments of a real job."""
    rings = [fds] if isinstance(fds, int) else list(fds)
    job = {
        "fds": rings,
        "pidfd": pidfd,
        "trainer_pid": os.getpid() if pid is None else pid,
        "out": out,
        "worker": "worker_0",
        "attempt": 0,
        "options": options.as_json(),
    }
    code = "import sys; from tdcore.flusher.main import main; sys.exit(main(sys.argv[1:]))"
    with default_signals():
        return subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(job)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[each for each in (*rings, pidfd) if each >= 0],
            start_new_session=True,
        )


class Killed(BaseException):
    """Ends a flusher at an arbitrary place, as SIGKILL does."""


def weights(step: int, count: int = 3, elements: int = 100) -> dict[str, Any]:
    return {f"fc{at}.weight": np.full(elements, step * 10 + at, dtype=np.float32) for at in range(count)}


def refuse(kind: str, *, operations: tuple[str, ...] = ("put",)) -> Callable[[str, str], None]:
    """Return a fault for MemorySink.fault: every operation of this kind fails."""

    def fault(operation: str, key: str) -> None:
        if operation in operations:
            raise SinkError(f"cannot {operation} {key}: no", kind=kind)  # type: ignore[arg-type]

    return fault
