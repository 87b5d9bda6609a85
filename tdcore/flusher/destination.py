"""open_destination: open the sink of a flusher, with a spool and a journal if the sink is remote."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdcore.flusher.messages import print_message
from tdcore.flusher.options import FlusherOptions
from tdcore.flusher.upload_journal import UploadJournal
from tdcore.flusher.writer_lock import wait_for_writer_lock
from tdcore.sinks import Sink, is_remote, local_path, open_sink

if TYPE_CHECKING:
    from tdcore.sinks.spool import Spool

__all__ = ["open_destination"]

_UPLOAD_SECONDS = 120.0
_PATIENCE = timedelta(seconds=5)  # short, because the flusher must read its ring again soon


@contextlib.contextmanager
def open_destination(job: Mapping[str, Any]) -> Iterator[tuple[Sink, UploadJournal | None]]:
    """The sink of `job["out"]` and its journal; the sink is closed at the end of the block.

    Within the block a lock prevents other processes from merging the files of the sink. job: "out", "worker",
    "attempt", "options", "run_id", "trainer_pid", and "spool", the folder of objects that the bucket does not
    accept in time.
    """
    if not is_remote(job["out"]):
        locked = wait_for_writer_lock(
            Path(local_path(job["out"])), job["worker"], job["attempt"], print_message
        )
        with contextlib.closing(open_sink(job["out"])) as sink, locked:
            yield sink, None
        return

    from tdcore.sinks.s3 import S3Sink
    from tdcore.sinks.spool_folders import journal_path
    from tdcore.sinks.spooled import SpooledSink

    worker, folder = job["worker"], Path(job["spool"])
    journal = UploadJournal(journal_path(folder), worker=worker, attempt=job["attempt"])
    remote = S3Sink(job["out"], patience=_PATIENCE)
    sink = SpooledSink(
        remote,
        _locked_spool(job),
        spill_after=FlusherOptions.from_json(job.get("options", {})).spill_after,
        log=lambda text: print_message(f"{worker}: {text}"),
    )
    with contextlib.closing(sink):
        yield sink, journal
        journal.remove()


def _locked_spool(job: Mapping[str, Any]) -> Spool:
    """The job's spool, locked after any other process has finished an upload from the spool."""
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
