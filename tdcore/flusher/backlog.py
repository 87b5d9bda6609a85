"""Backlog: index files that could not be written yet, of records whose payloads were dropped.

An item contains the rows of its records, or only a gap if the rows were dropped too. Each item covers a range
of tickets and becomes one index file, so that the ranges on disk have no holes. Threads: only the flusher's
thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from tdcore.flusher.index_summary import IndexGap, IndexSummary, coalesce
from tdcore.format.layout import FileRange

__all__ = ["Backlog", "IndexFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """An index file in memory. data: a buffer of its bytes."""

    range: FileRange
    data: Any
    size: int
    summary: IndexSummary


class Backlog:
    """Index files to be written, oldest first, of at most `limit` bytes. run_id: for the files of gaps."""

    def __init__(self, limit: int, run_id: str = "") -> None:
        self._limit = limit
        self._run_id = run_id
        self._items: deque[IndexFile] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def rows(self) -> int:
        """Number of rows in the backlog."""
        return sum(item.summary.rows for item in self._items)

    @property
    def uncounted_rows(self) -> int:
        """Number of waiting rows that are not in a counter of losses: the rows without a payload."""
        counted = sum(
            gap.tensors or 0 for item in self._items for gap in item.summary.gaps if gap.statistics_kept
        )
        return max(0, self.rows - counted)

    def has_room(self, size: int) -> bool:
        """Whether rows of `size` bytes fit in the limit."""
        return self._bytes + size <= self._limit

    def append(self, item: IndexFile) -> None:
        """Add a file at the end. The caller has checked has_room()."""
        self._items.append(item)
        self._bytes += item.size

    def append_gap(self, place: FileRange, gap: IndexGap) -> None:
        """Add a gap for tickets whose rows are not kept. Neighbouring gaps share one small file."""
        gaps, records = [gap], place.last - place.first + 1
        last = self._items[-1] if self._items else None
        if last is not None and last.summary.rows == 0:
            self._items.pop()
            self._bytes -= last.size
            place = FileRange(place.worker, place.attempt, last.range.first, place.last)
            gaps, records = [*last.summary.gaps, gap], records + last.summary.records
        self.append(self._gap_file(place, gaps, records))

    def prepend_gaps(self, place: FileRange, gaps: list[IndexGap]) -> None:
        """Add gaps before all other items, for tickets whose files were removed."""
        item = self._gap_file(place, gaps, place.last - place.first + 1)
        self._items.appendleft(item)
        self._bytes += item.size

    def first(self) -> IndexFile:
        """The file to write next. Raises IndexError if there is none."""
        return self._items[0]

    def remove_first(self) -> None:
        """Remove the first file after it has become durable."""
        self._bytes -= self._items.popleft().size

    def _gap_file(self, place: FileRange, gaps: list[IndexGap], records: int) -> IndexFile:
        from tdcore.flusher.index_table import encode_empty  # imports pyarrow, which is needed only for a gap

        summary = IndexSummary(records=records, gaps=tuple(coalesce(gaps)), run_id=self._run_id)
        data = encode_empty(summary)
        return IndexFile(range=place, data=data, size=len(data), summary=summary)
