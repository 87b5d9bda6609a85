"""Opens what a flusher writes to: the run's sink, and where that is far away its spool and journal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tdcore.flusher.health import say
from tdcore.flusher.journal import Journal
from tdcore.sinks import Sink, is_remote, open_sink

__all__ = ["open_place"]


@contextlib.contextmanager
def open_place(job: Mapping[str, Any]) -> Iterator[tuple[Sink, Journal | None]]:
    """The sink of `job["out"]`, closed at the end, and its journal.

    job: "out", "worker", "attempt", and "spool", the folder for what a bucket does not take in time.
    """
    if not is_remote(job["out"]):
        with contextlib.closing(open_sink(job["out"])) as sink:
            yield sink, None
        return

    from tdcore.sinks.s3 import S3Sink, parse_s3_url
    from tdcore.sinks.spool import Spool
    from tdcore.sinks.spooled import SpooledSink

    url, folder = job["out"], Path(job["spool"])
    worker, attempt = job["worker"], job["attempt"]
    limit = parse_s3_url(url).options.spool_bytes
    spool = Spool(folder, url=url, limit_bytes=limit, worker=worker, attempt=attempt)
    with contextlib.closing(
        SpooledSink(S3Sink(url), spool, say=lambda text: say(f"{worker}: {text}"))
    ) as far:
        yield far, Journal(folder / "journal.jsonl", worker=worker, attempt=attempt)
