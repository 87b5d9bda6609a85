"""Opens what a flusher writes to: the run's sink, and where that is far away its spool and journal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdcore.flusher.health import say
from tdcore.flusher.journal import Journal
from tdcore.flusher.options import FlusherOptions
from tdcore.sinks import Sink, is_remote, open_sink

if TYPE_CHECKING:
    from tdcore.sinks.spool import Spool

__all__ = ["open_place"]

_UPLOAD_SECONDS = 120.0
_PATIENCE = timedelta(seconds=5)  # the flusher must not be away from its ring for long


@contextlib.contextmanager
def open_place(job: Mapping[str, Any]) -> Iterator[tuple[Sink, Journal | None]]:
    """The sink of `job["out"]`, closed at the end, and its journal.

    job: "out", "worker", "attempt", "options", and "spool", where that is kept which a bucket does not take
    in time.
    """
    if not is_remote(job["out"]):
        with contextlib.closing(open_sink(job["out"])) as sink:
            yield sink, None
        return

    from tdcore.sinks.s3 import S3Sink
    from tdcore.sinks.spooled import SpooledSink

    worker, folder = job["worker"], Path(job["spool"])
    journal = Journal(folder.with_suffix(".journal"), worker=worker, attempt=job["attempt"])
    remote = S3Sink(job["out"], patience=_PATIENCE)
    sink = SpooledSink(
        remote,
        _locked_spool(job, journal),
        spill_after=FlusherOptions.from_json(job.get("options", {})).spill_after,
        say=lambda text: say(f"{worker}: {text}"),
    )
    with contextlib.closing(sink):
        yield sink, journal
        journal.remove()


def _locked_spool(job: Mapping[str, Any], journal: Journal) -> Spool:
    """The job's spool; a neighbour while somebody uploads what a flusher before this one left in it.

    Without a journal this flusher has to see in the bucket what was written, so it waits for the upload.
    """
    from tdcore.sinks.s3 import parse_s3_url
    from tdcore.sinks.spool import Spool, SpoolInUseError

    url, folder = job["out"], Path(job["spool"])
    about = {"worker": job["worker"], "attempt": job["attempt"], "run_id": job.get("run_id")}
    limit = parse_s3_url(url).options.spool_bytes
    neighbours = [folder.with_suffix(f".{number}") for number in range(1, 10)] if journal.exists else []
    deadline = time.monotonic() + _UPLOAD_SECONDS
    while True:
        for place in [folder, *neighbours]:
            spool = Spool(place, url=url, limit_bytes=limit, **about)
            with contextlib.suppress(SpoolInUseError):
                spool.lock()
                return spool
        if time.monotonic() >= deadline:
            raise SpoolInUseError(f"{folder} was in use for {_UPLOAD_SECONDS:.0f} s")
        time.sleep(0.5)
