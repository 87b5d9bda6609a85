"""Finishes what a job left in its spool: brings the objects to the bucket of the run, from any process.

Idempotent: an object goes to the same key with the same bytes however often it is sent, and leaves the spool
only when the bucket has it. Order is kept, so a reader sees the run grow as it would have. The spool of a
living job is not touched.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tdcore.errors import ConfigError, RunCorrupt, RunNotFound, SinkError, SinkKeyError, UnsupportedFeature
from tdcore.layout import RUN_KEY
from tdcore.processes import process_is_gone
from tdcore.sinks.spool import Spool, SpoolEntry, SpoolInUseError, count_objects, find_spools
from tdcore.sinks.spool_folders import journal_path

if TYPE_CHECKING:
    from tdcore.sinks.s3 import S3Sink

__all__ = ["Uploaded", "upload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """What became of one spool. left: objects that are still in it, and `why`; damaged: set aside.

    to: where the objects went; "" when the spool does not tell.
    """

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

    One that is in use by a living job, that cannot be read, whose bucket refuses or holds another run by
    now, is left as it is, and said so in the result. One that its job removes meanwhile is not in it.
    Raises RunNotFound when there is none, ConfigError for a `to` that cannot work or is given for several
    runs, UnsupportedFeature when no S3 client is installed.
    """
    from tdcore.sinks.s3 import parse_s3_url

    folders = find_spools(place)
    if not folders:
        raise RunNotFound(
            f"{place} holds no spool; a job that could not finish names its spool in its log, and run.json "
            'in the bucket has it under "spool"'
        )
    if to is not None:
        parse_s3_url(to)
        if len(_runs(folders)) > 1:
            raise ConfigError(
                f"{place} holds spools of several runs; give --to for one of them: {folders[0]}, ..."
            )
    results = [_upload_one(folder, to, sent) for folder in folders]
    return [result for result in results if result is not None]


def _runs(folders: Sequence[Path]) -> set[tuple[str, str]]:
    """The runs that the spools belong to, as far as they can be read."""
    found = set()
    for folder in folders:
        with contextlib.suppress(RunNotFound, RunCorrupt):
            spool = Spool(folder)
            found.add((spool.url, spool.run_id))
    return found


def _upload_one(folder: Path, to: str | None, sent: Callable[[Path, SpoolEntry], None]) -> Uploaded | None:
    """None when the spool is gone: its job has finished it."""
    upload = _Upload(folder, to, sent)
    try:
        upload.run()
    except RunNotFound:
        return None
    except UnsupportedFeature:
        raise
    except ConfigError as error:
        if to is not None:
            raise
        upload.why = str(error)
    except (RunCorrupt, SinkError, OSError) as error:
        upload.why = str(error)
    return upload.result()


class _Upload:
    """The upload of one spool, and how far it came."""

    def __init__(self, folder: Path, to: str | None, sent: Callable[[Path, SpoolEntry], None]) -> None:
        self.why = ""
        self._folder = folder
        self._to = to
        self._sent = sent
        self._where = ""
        self._objects = 0
        self._bytes = 0

    def run(self) -> None:
        """Raises what stops it."""
        from tdcore.sinks.s3 import S3Sink

        spool = Spool(self._folder)
        with contextlib.closing(spool), contextlib.closing(S3Sink(self._to or spool.url)) as sink:
            self._where = sink.where
            _check_job(spool)
            spool.lock()
            self._deliver(spool, sink)
            if not spool.entries:
                journal_path(self._folder).unlink(missing_ok=True)

    def _deliver(self, spool: Spool, sink: S3Sink) -> None:
        from tdcore.sinks.spool_drain import drain_spool

        if self._to is None and spool.run_id and len(spool):
            _check_run(spool, sink)
        while sink.loop.submit(drain_spool(spool, sink.store, sent=self._note)).result():
            pass

    def _note(self, entry: SpoolEntry) -> None:
        self._objects += 1
        self._bytes += entry.size
        self._sent(self._folder, entry)

    def result(self) -> Uploaded:
        """How far it came."""
        left, damaged = count_objects(self._folder)
        return Uploaded(
            spool=str(self._folder),
            to=self._where,
            objects=self._objects,
            bytes=self._bytes,
            left=left,
            damaged=damaged,
            why=self.why or ("objects are damaged, see its folder" if damaged else ""),
        )


def _check_run(spool: Spool, sink: S3Sink) -> None:
    """Raises RunCorrupt when the place holds another run than the spool's, or none: it was emptied."""
    try:
        document = json.loads(sink.get(RUN_KEY))
        found = document.get("run_id") if isinstance(document, dict) else None
    except SinkKeyError as error:
        raise RunCorrupt(
            f"{spool.folder} belongs to run {spool.run_id}, the bucket holds no run at {sink.where} any more "
            f"(no {RUN_KEY}), and what is in the spool is only a part of one; give --to where the run is now"
        ) from error
    except ValueError as error:
        raise RunCorrupt(f"{sink.where}/{RUN_KEY} cannot be read: {error}") from error
    if found != spool.run_id:
        raise RunCorrupt(
            f"{spool.folder} belongs to run {spool.run_id}, the bucket holds run {found} at {sink.where}; "
            "give --to another place"
        )


def _check_job(spool: Spool) -> None:
    """Raises SpoolInUseError while the job may start another flusher: there is a journal, and it lives.

    A flusher that has ended well removes its journal, whatever it leaves in its spool.
    """
    about = spool.about
    pid, host, noted_ns = about.get("pid", 0), about.get("host", ""), about.get("created_ns", 0)
    if not (isinstance(pid, int) and isinstance(noted_ns, int)):
        return  # written by hand
    if journal_path(spool.folder).exists() and process_is_gone(host, pid, noted_ns) is False:
        raise SpoolInUseError(
            f"{spool.folder} belongs to a job that runs (process {pid}); it uploads by itself"
        )
