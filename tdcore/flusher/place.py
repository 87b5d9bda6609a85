"""Opens what a flusher writes to: the run's sink, and where that is far away its spool and journal."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdcore.flusher.health import say
from tdcore.flusher.journal import Journal
from tdcore.flusher.options import FlusherOptions
from tdcore.flusher.writer_lock import wait_for_writer_lock
from tdcore.sinks import Sink, is_remote, local_path, open_sink

if TYPE_CHECKING:
    from tdcore.sinks.spool import Spool

__all__ = ["open_place"]

_UPLOAD_SECONDS = 120.0
_PATIENCE = timedelta(seconds=5)  # the flusher must not be away from its ring for long


@contextlib.contextmanager
def open_place(job: Mapping[str, Any]) -> Iterator[tuple[Sink, Journal | None]]:
    """The sink of `job["out"]`, closed at the end, and its journal. Nobody else merges its files meanwhile.

    job: "out", "worker", "attempt", "options", "run_id", "trainer_pid", and "spool", where that is kept which
    a bucket does not take in time.
    """
    if not is_remote(job["out"]):
        locked = wait_for_writer_lock(Path(local_path(job["out"])), job["worker"], job["attempt"], say)
        with contextlib.closing(open_sink(job["out"])) as sink, locked:
            yield sink, None
        return

    from tdcore.sinks.s3 import S3Sink
    from tdcore.sinks.spool_place import journal_of
    from tdcore.sinks.spooled import SpooledSink

    worker, folder = job["worker"], Path(job["spool"])
    journal = Journal(journal_of(folder), worker=worker, attempt=job["attempt"])
    remote = S3Sink(job["out"], patience=_PATIENCE)
    sink = SpooledSink(
        remote,
        _locked_spool(job),
        spill_after=FlusherOptions.from_json(job.get("options", {})).spill_after,
        say=lambda text: say(f"{worker}: {text}"),
    )
    with contextlib.closing(sink):
        yield sink, journal
        journal.remove()


def _locked_spool(job: Mapping[str, Any]) -> Spool:
    """The job's spool, once whoever uploads what a flusher before this one left has let go of it."""
    from tdcore.sinks.s3 import parse_s3_url
    from tdcore.sinks.spool import Spool, SpoolInUseError

    spool = Spool(
        Path(job["spool"]),
        url=job["out"],
        limit_bytes=parse_s3_url(job["out"]).options.spool_bytes,
        worker=job["worker"],
        attempt=job["attempt"],
        run_id=job.get("run_id"),
        pid=job.get("trainer_pid", os.getpid()),
    )
    deadline = time.monotonic() + _UPLOAD_SECONDS
    while True:
        try:
            spool.lock()
            return spool
        except SpoolInUseError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.5)
