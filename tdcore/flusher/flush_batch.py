"""FlushBatch: the records of one flush, from the ring to the sink.

A batch is written as a segment and then an index file. If the sink reports that the segment is durable, a
retry writes only the index file. Threads: only the flusher's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdcore.flusher import index_table
from tdcore.flusher.backlog import IndexFile
from tdcore.flusher.index_summary import IndexGap
from tdcore.flusher.lost_tensors import LostTensors
from tdcore.flusher.pipeline import Objects
from tdcore.format.layout import FileRange, segment_name

if TYPE_CHECKING:
    from tdcore._core import Consumer, Drained

__all__ = ["FlushBatch"]


class FlushBatch:
    """The records `drained`, with the tickets `place` (which include earlier tickets without rows).

    lost: tensors of earlier batches whose payload was dropped. run_id: id of the run, stored in the segment
    and the index file.
    """

    def __init__(
        self,
        drained: Drained,
        place: FileRange,
        names: index_table.RingNameTable,
        lost: LostTensors,
        run_id: str = "",
    ) -> None:
        self.drained = drained
        self._run_id = run_id
        self._lost = lost
        self.range = place
        self.segment_written = False
        self._names = names
        self._rows = index_table.rows_of(drained)
        self._segment_bytes = -1  # not planned yet
        self._file: IndexFile | None = None

    def objects(self) -> Objects:
        """Segment and index file, in this order; without the segment if it is already written."""
        if self._segment_bytes < 0:
            self._names.refresh()
            self._segment_bytes = self.drained.plan_segment(self._names.names, self._run_id)
            self._rows = index_table.rows_of(self.drained)
        index = (self.range.index_key, [memoryview(self.index_file().data)])
        if not self._segment_bytes or self.segment_written:
            return [index]
        return [(self.range.data_key, self.drained.segment_parts()), index]

    def mark_written(self, key: str) -> None:
        """Mark the object `key` as durable."""
        self.segment_written = self.segment_written or key == self.range.data_key

    def index_file(self) -> IndexFile:
        """The index file whose rows refer to the segment. Call objects() first."""
        if self._file is None:
            segment = segment_name(self.range.attempt, self.range.first, self.range.last)
            saved = (segment, self._segment_bytes) if self._segment_bytes else None
            self._file = self._encode(saved, lost=False)
        return self._file

    def lost_file(self) -> IndexFile:
        """The index file without payloads: rows and statistics are kept."""
        self._names.refresh()
        return self._encode(None, lost=True)

    def forget_written(self) -> None:
        """Write the segment again, because the run's folder was removed."""
        self.segment_written = False

    def gap(self, reason: str) -> IndexGap:
        """A gap that covers the whole batch."""
        return self._gap(reason, rows_kept=False)

    def count_lost(self, consumer: Consumer, *, rows_kept: bool) -> None:
        """Count each dropped tensor once. Call gap() first, because gap() leaves out counted tensors."""
        gap = self._gap("io_error", rows_kept=rows_kept)
        if gap.tensors or gap.bytes:
            consumer.count_drop(index_table.IO_ERROR, gap.tensors or 0, gap.bytes or 0)
        self._lost.remember(self._rows, index_table.given_up(self._rows, statistics_kept=rows_kept))

    def _gap(self, reason: str, *, rows_kept: bool) -> IndexGap:
        tensors = self._lost.count(self._rows, index_table.given_up(self._rows, statistics_kept=rows_kept))
        return index_table.gap_of(self._rows, tensors=tensors, reason=reason, statistics_kept=rows_kept)

    def _encode(self, saved: tuple[str, int] | None, *, lost: bool) -> IndexFile:
        gaps = []
        if lost:
            gap = self._gap("io_error", rows_kept=True)
            gaps = [gap] if gap.tensors or gap.bytes else []
        records = self.drained.end_ticket - self.drained.first_ticket
        whole = self.drained.whole_step
        summary = index_table.summarise(
            self._rows,
            records=records,
            segment=saved,
            gaps=gaps,
            whole_step=whole,
            run_id=self._run_id,
        )
        data = index_table.encode_index(
            self._rows,
            self._names,
            summary,
            worker=self.range.worker,
            attempt=self.range.attempt,
            segment=saved[0] if saved else None,
            lost=lost,
        )
        return IndexFile(range=self.range, data=data, size=len(data), summary=summary)
