"""Upload the objects that a job has left in its spool to the bucket of the run, from any process.

An upload is idempotent: an object has the same key and the same bytes in every upload, and is removed from
the spool only when the bucket has the object. Objects are sent in order, so a reader finds a consistent run
at any time. The spool of a job that is alive is not changed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tdcore.errors import ConfigError, RunCorrupt, RunNotFound, SinkError, SinkKeyError, UnsupportedFeature
from tdcore.format.layout import RUN_KEY
from tdcore.liveness import process_is_gone
from tdcore.sinks.spool import Spool, SpoolEntry, SpoolInUseError, count_objects, find_spools
from tdcore.sinks.spool_folders import journal_path

if TYPE_CHECKING:
    from tdcore.sinks.s3 import S3Sink

__all__ = ["Uploaded", "upload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """Result for one spool. left: number of objects that are still in the spool. why: the reason.

    to: destination of the objects; "" if the spool has none. damaged: number of objects that were set aside.
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
    """Empty the spool in `place`, or all spools below it.

    A spool is not changed, and its result has the reason, if a job that is alive uses the spool, if the spool
    cannot be read, or if its bucket fails or contains another run. A spool that its job removes in the
    meantime has no result.

    Args:
        place: A spool, or a folder with spools.
        to: s3:// URL of a destination that replaces the destination of the spool, or this destination with
            other options.
        sent: Called for each object.

    Returns:
        The results, in the order of the spools.

    Raises:
        RunNotFound: there is no spool.
        ConfigError: `to` is invalid, or is given for spools of several runs.
        UnsupportedFeature: no S3 client is installed.
    """
    from tdcore.sinks.s3 import parse_s3_url

    folders = find_spools(place)
    if not folders:
        raise RunNotFound(
            f"{place} contains no spool; the log of the job has the path of its spool, and run.json "
            'in the bucket has the path under "spool"'
        )
    if to is not None:
        parse_s3_url(to)
        if len(_runs(folders)) > 1:
            raise ConfigError(
                f"{place} contains spools of several runs; call with --to for each spool: {folders[0]}, ..."
            )
    results = [_upload_one(folder, to, sent) for folder in folders]
    return [result for result in results if result is not None]


def _runs(folders: Sequence[Path]) -> set[tuple[str, str]]:
    """The runs of the spools that can be read."""
    found = set()
    for folder in folders:
        with contextlib.suppress(RunNotFound, RunCorrupt):
            spool = Spool(folder)
            found.add((spool.url, spool.run_id))
    return found


def _upload_one(folder: Path, to: str | None, sent: Callable[[Path, SpoolEntry], None]) -> Uploaded | None:
    """Upload one spool. None if the spool does not exist any more because its job has emptied it."""
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
    """The upload of one spool, and its totals so far."""

    def __init__(self, folder: Path, to: str | None, sent: Callable[[Path, SpoolEntry], None]) -> None:
        self.why = ""
        self._folder = folder
        self._to = to
        self._sent = sent
        self._where = ""
        self._objects = 0
        self._bytes = 0

    def run(self) -> None:
        """Upload until the spool is empty. Raises the first error."""
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
        """The totals so far."""
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
    """Raise RunCorrupt if the destination does not contain the run of the spool."""
    try:
        document = json.loads(sink.get(RUN_KEY))
        found = document.get("run_id") if isinstance(document, dict) else None
    except SinkKeyError as error:
        raise RunCorrupt(
            f"{spool.folder} belongs to run {spool.run_id}, the bucket has no run at {sink.where} any more "
            f"(no {RUN_KEY}), and the spool has only a part of the run; set --to to the place of the run"
        ) from error
    except ValueError as error:
        raise RunCorrupt(f"{sink.where}/{RUN_KEY} cannot be read: {error}") from error
    if found != spool.run_id:
        raise RunCorrupt(
            f"{spool.folder} belongs to run {spool.run_id}, the bucket has run {found} at {sink.where}; "
            "set --to to another place"
        )


def _check_job(spool: Spool) -> None:
    """Raise SpoolInUseError while the job may start another flusher: its journal exists and it is alive.

    A flusher that ends normally removes its journal, even if objects are still in its spool.
    """
    about = spool.about
    pid, host, noted_ns = about.get("pid", 0), about.get("host", ""), about.get("created_ns", 0)
    if not (isinstance(pid, int) and isinstance(noted_ns, int)):
        return  # the spool was written by hand
    if journal_path(spool.folder).exists() and process_is_gone(host, pid, noted_ns) is False:
        raise SpoolInUseError(
            f"{spool.folder} belongs to a job that still runs (process {pid}) and uploads the spool itself"
        )
