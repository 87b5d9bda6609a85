"""Merge the small files of a run whose writer has ended, with the code of the flusher.

A flusher merges files while it writes. A flusher that is killed at the end of a run leaves small files. A
merge may be interrupted at every step: readers find each row exactly once before, during and after it, and
the next merge removes leftovers. Files of a worker whose process or flusher is alive are not changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdcore.errors import ConfigError, RunNotFound
from tdcore.flusher.writer_lock import Held, NotLocked, hold_writer_lock
from tdcore.format.layout import INDEX_PREFIX, RUN_KEY, parse_index_key
from tdcore.liveness import process_is_gone
from tdcore.sinks import is_remote

if TYPE_CHECKING:
    from tdcore.flusher.ledger import Ledger
    from tdcore.sinks import Sink

__all__ = ["MergedFiles", "merge_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFiles:
    """Result for the files of one worker in one attempt.

    before, after: number of index files. why: the reason if the files were not merged, or "".
    """

    worker: str
    attempt: int
    before: int
    after: int
    why: str = ""


def merge_run(
    run: str | Path, *, gone: bool = False, done: Callable[[MergedFiles], None] = lambda merged: None
) -> list[MergedFiles]:
    """Merge the small files of every worker and attempt of a run in a folder.

    Args:
        run: the folder.
        gone: the caller confirms that processes on other machines have ended, which is not checked.
        done: called with each result.

    Returns:
        The results, by attempt and worker.

    Raises:
        RunNotFound: the folder contains no run.
        ConfigError: the run is in a bucket.
        SinkError: the folder cannot be read or written.
    """
    if is_remote(str(run)):
        raise ConfigError(
            f"{run} is in a bucket, where a flusher that still writes is not detected: download it, merge "
            "it, and upload it under another name"
        )
    from tdcore.sinks.local import LocalSink

    root = Path(run)
    if not (root / RUN_KEY).is_file():
        raise RunNotFound(f"{root} contains no run: there is no {RUN_KEY}")
    sink = LocalSink(root)
    found = (parse_index_key(key) for key in sink.list(INDEX_PREFIX))
    results = []
    for attempt, worker in sorted({(each.attempt, each.worker) for each in found if each is not None}):
        results.append(_merge_worker(root, sink, worker, attempt, gone=gone))
        done(results[-1])
    return results


def _merge_worker(root: Path, sink: Sink, worker: str, attempt: int, *, gone: bool) -> MergedFiles:
    from tdcore.flusher.ledger import Ledger

    count = _index_files(sink, worker, attempt)
    why = _writer(sink, worker, attempt, gone=gone)
    if not why:
        try:
            with hold_writer_lock(root, worker, attempt):
                ledger = Ledger(sink, worker=worker, attempt=attempt)
                why = _merge(ledger, sink)
        except Held:
            why = "its flusher still writes"
        except NotLocked as error:
            why = f"its claim cannot be locked, so a flusher might write at the same time: {error}"
    return MergedFiles(
        worker=worker, attempt=attempt, before=count, after=_index_files(sink, worker, attempt), why=why
    )


def _writer(sink: Sink, worker: str, attempt: int, *, gone: bool) -> str:
    """Why the worker's files may still be written; "" if its process has ended."""
    from tdcore.trial.documents import claimed_process, read_claim

    claim: Mapping[str, Any] = read_claim(sink, worker, attempt)
    host, pid, started_ns = claimed_process(claim)
    found = process_is_gone(host, pid, started_ns)
    if found is False:
        return f"its process, {pid}, still runs"
    if found is None and not gone:
        where = f"on {host}" if host else "on an unknown machine: its claim has no host"
        return f"its process runs or ran {where}; add --gone if it has ended"
    return ""


def _merge(ledger: Ledger, sink: Sink) -> str:
    """Merge until no merge saves files. Returns the reason for files that cannot be merged, or ""."""
    from tdcore.flusher.compactor import Compactor
    from tdcore.flusher.options import FlusherOptions

    ledger.recover()
    options = replace(FlusherOptions(), final_merge=timedelta(days=365))
    compactor = Compactor(sink, ledger, options, time.monotonic)
    while compactor.step(time.monotonic()):
        pass
    compactor.finish()
    ledger.sweep()
    return (
        "" if all(entry.summary is not None for entry in ledger.entries) else "an index file cannot be read"
    )


def _index_files(sink: Sink, worker: str, attempt: int) -> int:
    found = (parse_index_key(key) for key in sink.list(f"{INDEX_PREFIX}{worker}/"))
    return sum(each is not None and each.attempt == attempt for each in found)
