"""Gaps: captured tensors that are not in the run. The writer counted them, or an index file is missing.

The flusher writes gaps into the metadata of index files, and all gaps into the end file. Threads:
functions without state; FileGaps belongs to one reader.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdcore.format import layout

if TYPE_CHECKING:
    from tdcore.trial.documents import RunEnd
    from tdcore.trial.index import Index

__all__ = ["FileGaps", "Gap", "all_gaps", "file_gaps"]

_MAX_GAPS = 4096  # maximum number of gaps in a document


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Tensors that were captured but are not in the run. Unknown numbers are None.

    Attributes:
        reason: "gone" (the folder of the run was removed), "io_error" (the storage refused them),
            "no_index_file" (no index file covers the tickets `first` to `last`, inclusive, although later
            tickets are covered).
        first_step, last_step: Global steps, inclusive.
        tensors, bytes: Number of tensors and bytes.
        statistics_kept: Whether the rows exist, with status "lost".
    """

    worker: str
    attempt: int
    reason: str
    first: int | None = None
    last: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    tensors: int | None = None
    bytes: int | None = None
    statistics_kept: bool = False


class FileGaps:
    """The gaps in the index files that were read. A file replaces the files whose tickets it covers."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], dict[layout.FileRange, tuple[Gap, ...]]] = {}

    def add(self, file: layout.FileRange, gaps: tuple[Gap, ...]) -> None:
        """Add the gaps of a file."""
        files = self._found.setdefault((file.worker, file.attempt), {})
        for other in [other for other in files if file.contains(other)]:
            del files[other]
        if gaps:
            files[file] = gaps

    def of(self, worker: str, attempt: int) -> list[Gap]:
        """The gaps of one worker and attempt."""
        files = self._found.get((worker, attempt), {})
        return [gap for file in sorted(files, key=lambda file: file.first) for gap in files[file]]

    def homes(self) -> set[tuple[str, int]]:
        """The workers and attempts with gaps."""
        return {home for home, files in self._found.items() if files}


def file_gaps(file: layout.FileRange, metadata: Mapping[bytes, bytes] | None) -> tuple[Gap, ...]:
    """The gaps in the metadata of an index file; none if the metadata has no summary."""
    try:
        entries = json.loads((metadata or {})[layout.SUMMARY_KEY])["gaps"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()
    return tuple(_parsed(entries, file.worker, file.attempt))


def all_gaps(index: Index, ends: Mapping[tuple[str, int], RunEnd]) -> list[Gap]:
    """All gaps by attempt and worker: holes, and the gaps in the end file, else in the index files."""
    found = [
        Gap(
            worker=hole.worker, attempt=hole.attempt, reason="no_index_file", first=hole.first, last=hole.last
        )
        for hole in index.holes
    ]
    for home, end in ends.items():
        found += _parsed(end.document.get("gaps"), *home)
    for home in index.file_gaps.homes() - ends.keys():
        found += index.file_gaps.of(*home)
    return sorted(found, key=lambda gap: (gap.attempt, gap.worker))


def _parsed(entries: object, worker: str, attempt: int) -> Iterable[Gap]:
    """Gaps from JSON. A field that is not a whole number counts as unknown."""
    for entry in entries[:_MAX_GAPS] if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            yield Gap(
                worker=worker,
                attempt=attempt,
                reason=str(entry.get("reason", "unknown"))[:200],
                statistics_kept=entry.get("statistics_kept") is True,
                **{name: _count(entry, name) for name in ("first_step", "last_step", "tensors", "bytes")},
            )


def _count(entry: Mapping[str, Any], name: str) -> int | None:
    value = entry.get(name)
    return value if type(value) is int and 0 <= value < 1 << 63 else None
