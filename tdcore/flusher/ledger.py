"""Ledger: the index files of one worker in one attempt, with their ranges of tickets and totals.

The ledger is in memory. A restarted flusher rebuilds it from the journal, or without a journal from the names
and footers of the index files. Threads: only the flusher's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tdcore.flusher.index_summary import IndexGap, IndexSummary
from tdcore.flusher.upload_journal import UploadJournal
from tdcore.format.layout import (
    FileRange,
    data_prefix,
    index_prefix,
    live_ranges,
    parse_data_key,
    parse_index_key,
    segment_key,
)
from tdcore.sinks.base import Sink, delete_all

__all__ = ["IndexEntry", "Ledger"]

_TAIL_BYTES = 64 * 1024
_LONG_TAIL_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One live index file. size: in bytes. summary: None if it is unreadable, which prevents merges."""

    range: FileRange
    size: int
    summary: IndexSummary | None


class Ledger:
    """The live index files of `worker` in `attempt`, oldest first."""

    def __init__(
        self, sink: Sink, *, worker: str, attempt: int, journal: UploadJournal | None = None
    ) -> None:
        self._sink = sink
        self._journal = journal
        self.worker = worker
        self.attempt = attempt
        self.entries: list[IndexEntry] = []
        self.changes = 0  # incremented when entries are added or replaced

    @property
    def covered(self) -> int:
        """The last ticket in an index file; -1 without index files."""
        return self.entries[-1].range.last if self.entries else -1

    def start(self) -> None:
        """Begin the ledger of the first flusher of the attempt."""
        if self._journal is not None:
            self._journal.start()

    def begin(self, place: FileRange) -> None:
        """Record that the next file will be written."""
        if self._journal is not None:
            self._journal.begin(place)

    def add(self, entry: IndexEntry) -> None:
        """Add the next file, which is durable."""
        self.entries.append(entry)
        if self._journal is not None:
            self._journal.add(entry.range, entry.size, entry.summary)
        self.changes += 1

    def replace(self, old: Sequence[IndexEntry], new: IndexEntry) -> None:
        """Replace the neighbours `old` by `new`, which is durable and covers their tickets."""
        start = self.entries.index(old[0])
        self.entries[start : start + len(old)] = [new]
        if self._journal is not None:
            self._journal.replace(new.range, new.size, new.summary)
        self.changes += 1

    def forget(self) -> list[IndexGap]:
        """Forget all files, because they were removed.

        Returns the gaps that replace the files: the gaps without rows, and one gap for all rows.
        """
        total = self.totals()
        self.entries.clear()
        gaps = [gap for gap in total.gaps if not gap.statistics_kept]
        if total.rows:
            gone = IndexGap(
                first_step=None,
                last_step=total.last_step,
                tensors=total.rows,
                bytes=total.payload_bytes,
                reason="gone",
            )
            gaps.append(gone)
        return gaps

    def totals(self) -> IndexSummary:
        """Sums over all live index files."""
        return IndexSummary.total(entry.summary for entry in self.entries if entry.summary is not None)

    def recover(self) -> list[FileRange]:
        """Find the files of earlier flushers of this attempt, and remove incomplete files.

        Returns the files that earlier flushers had begun, oldest first, if a journal lists them. These files
        must be written again with the same contents. Raises SinkError; call recover() again in this case.
        """
        recorded = self._journal.read() if self._journal is not None else None
        if recorded is not None:
            self.entries = [
                IndexEntry(range=place, size=size, summary=summary) for place, size, summary in recorded.files
            ]
            return recorded.begun
        for prefix in (index_prefix(self.worker), data_prefix(self.worker)):
            self._sink.clean(prefix)
        found = self._own_index_files()
        live = live_ranges(found)
        self.entries = [self._entry(each) for each in live]
        self._delete(set(found) - set(live))
        self.sweep()
        self._write_journal()
        return []

    def _write_journal(self) -> None:
        """Begin a journal with all existing files."""
        if self._journal is not None:
            self._journal.start()
            for entry in self.entries:
                self._journal.add(entry.range, entry.size, entry.summary)

    def sweep(self) -> None:
        """Delete files of this attempt that are not needed any more. Raises SinkError.

        The entries cover all tickets without holes, so every other index file was merged, or is the result of
        a merge that was not recorded before its flusher died. Index files are deleted before their segments.
        """
        needed = {entry.range for entry in self.entries}
        found = self._own_index_files()
        self._delete(each for each in found if each not in needed and each.last <= self.covered)
        self._sweep_segments()

    def _sweep_segments(self) -> None:
        """Delete segments that are in no index file."""
        if any(entry.summary is None for entry in self.entries):
            return  # an unreadable index file may refer to any segment
        named = {name for entry in self.entries for name in (entry.summary.segments if entry.summary else ())}
        needed = {segment_key(self.worker, name) for name in named}
        found = ((key, parse_data_key(key)) for key in self._sink.list(data_prefix(self.worker)))
        mine = [key for key, place in found if place is not None and place.attempt == self.attempt]
        delete_all(self._sink, [key for key in mine if key not in needed])

    def _delete(self, places: Iterable[FileRange]) -> None:
        delete_all(self._sink, [each.index_key for each in places])

    def _own_index_files(self) -> list[FileRange]:
        found = (parse_index_key(key) for key in self._sink.list(index_prefix(self.worker)))
        return [each for each in found if each is not None and each.attempt == self.attempt]

    def _entry(self, place: FileRange) -> IndexEntry:
        from tdcore.flusher.index_table import read_footer

        for length in (_TAIL_BYTES, _LONG_TAIL_BYTES):
            tail = self._sink.tail(place.index_key, length)
            try:
                summary, size = read_footer(tail)
            except ValueError:
                continue
            return IndexEntry(range=place, size=size, summary=summary)
        return IndexEntry(range=place, size=0, summary=None)
