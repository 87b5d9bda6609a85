"""Opens what a flusher writes to: the run's sink, and where that is far away its spool and journal."""

from __future__ import annotations

import contextlib
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
        _locked_spool(job),
        spill_after=FlusherOptions.from_json(job.get("options", {})).spill_after,
        say=lambda text: say(f"{worker}: {text}"),
    )
    with contextlib.closing(sink):
        yield sink, journal
        journal.remove()


def _locked_spool(job: Mapping[str, Any]) -> Spool:
    """The job's spool; a neighbour when somebody is uploading what a flusher before this one left in it."""
    from tdcore.sinks.s3 import parse_s3_url
    from tdcore.sinks.spool import Spool, SpoolInUseError

    url, folder = job["out"], Path(job["spool"])
    limit = parse_s3_url(url).options.spool_bytes
    for place in [folder, *(folder.with_suffix(f".{number}") for number in range(1, 10))]:
        spool = Spool(place, url=url, limit_bytes=limit, worker=job["worker"], attempt=job["attempt"])
        with contextlib.suppress(SpoolInUseError):
            spool.lock()
            return spool
    spool.lock()
    return spool
