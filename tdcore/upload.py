"""Finishes what a job left in its spool: brings the objects to the bucket of the run, from any process.

Idempotent: an object goes to the same key with the same bytes however often it is sent, and leaves the spool
only when the bucket has it. Order is kept, so a reader sees the run grow as it would have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tdcore.errors import ConfigError, RunNotFound, SinkError
from tdcore.sinks.spool import Spool, SpoolEntry, find_spools

__all__ = ["Uploaded", "upload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """What became of one spool. left: objects that are still in it, and `why`; damaged: set aside."""

    spool: str
    to: str
    objects: int
    bytes: int
    left: int
    damaged: int
    why: str = ""


def upload(
    place: Path,
    *,
    to: str | None = None,
    sent: Callable[[Path, SpoolEntry], None] = lambda folder, entry: None,
) -> list[Uploaded]:
    """Empty the spool in `place`, or all below it. to: another s3:// place than the one they were made for,
    or the same with other options. sent: called for each object.

    One that is in use by a living job, or whose bucket refuses, is left as it is, and said so in the result.
    Raises RunNotFound when there is none, RunCorrupt for one that cannot be read.
    """
    folders = find_spools(place)
    if not folders:
        raise RunNotFound(
            f"{place} holds no spool; a job that could not finish names its spool in its log, and run.json "
            'in the bucket has it under "spool"'
        )
    if to is not None and len(folders) > 1 and len({Spool(folder).url for folder in folders}) > 1:
        raise ConfigError(f"{place} holds spools of several runs; give one of them: {folders[0]}, ...")
    return [_upload_one(folder, to, sent) for folder in folders]


def _upload_one(folder: Path, to: str | None, sent: Callable[[Path, SpoolEntry], None]) -> Uploaded:
    from tdcore.sinks.delivery import deliver
    from tdcore.sinks.s3 import S3Sink

    spool = Spool(folder)
    sink = S3Sink(to or spool.url)
    done: list[SpoolEntry] = []
    why = ""

    def note(entry: SpoolEntry) -> None:
        done.append(entry)
        sent(folder, entry)

    with contextlib.closing(sink):
        try:
            spool.lock()
            spool.reload()  # what another process did between our look and our lock
            while sink.loop.submit(deliver(spool, sink.store, sent=note)).result():
                pass
        except SinkError as error:
            why = str(error)
        result = Uploaded(
            spool=str(folder),
            to=sink.where,
            objects=len(done),
            bytes=sum(entry.size for entry in done),
            left=len(spool),
            damaged=len(spool.damaged),
            why=why,
        )
    spool.close()
    return replace(result, why=why or ("objects are damaged, see its folder" if result.damaged else ""))
