"""Missing: data that a reader expects in a run but does not find, with advice."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tdcore.liveness import process_is_gone
from tdcore.trial.documents import claimed_process
from tdcore.trial.gaps import Gap, all_gaps
from tdcore.trial.left_out import LeftOut, left_out_of
from tdcore.trial.worker_order import worker_order

if TYPE_CHECKING:
    from tdcore.trial.index import Hole, Index
    from tdcore.trial.progress import RunProgress

__all__ = ["Missing", "find_missing"]


_OF_GAPS = {
    "gone": "the folder of the run was removed while the run was written: restore its files from a copy",
    "io_error": "they could not be written: check the free space and the permissions before the next run",
}
_NAMES = "give the hook more memory or a larger RingConfig.names_bytes, or shorten the names"


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Data that is missing in a run.

    Attributes:
        what: Kind of missing data. "rows": no index file has the tickets first..last (inclusive), although
            later tickets exist. "end": a worker has written nothing for a while and has no end file, so rows
            from ticket `first` on may exist; for earlier attempts, this is reported only if the worker has a
            spool, which may contain them. "gap": the writer of the run has counted tensors that were captured
            but are not in the run; `gap` has the numbers. "names": the hook did not record tensors because
            their names were left out; `left_out` has the numbers.
        advice: One sentence.
    """

    worker: str
    attempt: int
    what: Literal["rows", "end", "gap", "names"]
    first: int | None
    last: int | None
    advice: str
    gap: Gap | None = None
    left_out: LeftOut | None = None


def find_missing(
    index: Index, progress: RunProgress, notes: Iterable[tuple[str, int, Mapping[str, Any]]]
) -> list[Missing]:
    """The missing data, by attempt and worker, from the data that index and progress have read.

    Reads the claims of workers with missing data, once.

    Args:
        index: The index of the run.
        progress: The progress of the run.
        notes: Worker ("" for the first), attempt and notes.

    Raises:
        SinkError: A claim cannot be read.
    """
    holes, silent = index.holes, progress.silent()
    claims = progress.claims([*((hole.worker, hole.attempt) for hole in holes), *silent])
    found = [_rows(hole, claims[hole.worker, hole.attempt]) for hole in holes]
    found += [_counted(gap) for gap in all_gaps(index, progress.ends) if gap.reason != "no_index_file"]
    found += _left_out(progress, notes)
    latest = progress.latest_attempt
    for worker, attempt in silent:
        said = claims[worker, attempt]
        if attempt < latest and not _upload(said):
            continue  # the rest of its data is lost, and the run has continued
        gone = process_is_gone(*claimed_process(said))
        if gone is False:
            continue  # it is alive, and may save rarely
        found.append(
            Missing(
                worker=worker,
                attempt=attempt,
                what="end",
                first=index.end(worker, attempt),
                last=None,
                advice=_end_advice(said, gone=gone is True),
            )
        )
    return sorted(found, key=lambda each: (each.attempt, each.worker, each.first or 0))


def _rows(hole: Hole, claim: Mapping[str, Any]) -> Missing:
    return Missing(
        worker=hole.worker,
        attempt=hole.attempt,
        what="rows",
        first=hole.first,
        last=hole.last,
        advice=_upload(claim) or "an index file was lost or deleted: restore it from a copy",
    )


def _counted(gap: Gap) -> Missing:
    advice = _OF_GAPS.get(gap.reason, f"the flusher recorded the reason {gap.reason!r}")
    return Missing(
        worker=gap.worker, attempt=gap.attempt, what="gap", first=None, last=None, advice=advice, gap=gap
    )


def _left_out(
    progress: RunProgress, notes: Iterable[tuple[str, int, Mapping[str, Any]]]
) -> Iterator[Missing]:
    for worker, attempt, said in notes:
        left_out = left_out_of(said)
        if left_out is not None:
            first = worker or min(progress.workers(attempt), key=worker_order, default="worker_0")
            yield Missing(
                worker=first,
                attempt=attempt,
                what="names",
                first=None,
                last=None,
                advice=_NAMES,
                left_out=left_out,
            )


def _end_advice(claim: Mapping[str, Any], *, gone: bool) -> str:
    upload = _upload(claim)
    if upload:
        return upload if gone else f"if it no longer runs, {upload}"
    if gone:
        return "its process has ended and left no spool: data that it had not written is lost"
    where = claim.get("host")
    return (
        f"check whether it still runs on {where}"
        if isinstance(where, str) and where
        else "check whether it still runs"
    )


def _upload(claim: Mapping[str, Any]) -> str:
    """Advice to upload the spool of a worker; "" if it has none."""
    spool, host = claim.get("spool"), claim.get("host")
    if not isinstance(spool, str) or not spool:
        return ""
    where = f" on {host}" if isinstance(host, str) and host else ""
    return f"run `tdcore upload {shlex.quote(spool)}`{where}"
