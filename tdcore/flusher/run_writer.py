"""RunWriter: writer of documents, index files of lost rows, and batches of records, in this order.

Threads: only the flusher's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tdcore.flusher.backlog import Backlog
from tdcore.flusher.index_summary import IndexGap, IndexSummary
from tdcore.flusher.ledger import IndexEntry, Ledger
from tdcore.flusher.messages import print_message
from tdcore.flusher.options import FlusherOptions
from tdcore.flusher.pending_documents import PendingDocuments
from tdcore.flusher.pipeline import Pipeline
from tdcore.flusher.ring_reader import RingReader
from tdcore.format.layout import FileRange
from tdcore.sinks.base import Sink, SinkError

if TYPE_CHECKING:
    from tdcore._core import Consumer
    from tdcore.flusher.flush_batch import FlushBatch

__all__ = ["RunWriter"]

_RING_SHARE = 4  # a flush takes at most this share of the ring, so that memory is released in pieces
_REMOTE_RING_SHARE = 16  # the same if several flushes run at the same time


class RunWriter:
    """The writer of the records of one ring. `ledger` has the index files of its worker and attempt.

    written: called with the summary of each durable index file. report_error: reports an error to the
    trainer. See Flusher for the other arguments.
    """

    def __init__(
        self,
        consumer: Consumer,
        sink: Sink,
        ledger: Ledger,
        *,
        written: Callable[[IndexSummary], None],
        report_error: Callable[[str], None],
        options: FlusherOptions,
        run_id: str,
        clock: Callable[[], float],
    ) -> None:
        self._consumer = consumer
        self._ledger = ledger
        self._on_written = written
        self._report_error = report_error
        self._options = options
        self._clock = clock
        self.pipeline = Pipeline(sink)
        self.documents = PendingDocuments(sink)
        self.backlog = Backlog(options.kept_bytes, run_id)
        self.reader = RingReader(
            consumer,
            worker=ledger.worker,
            attempt=ledger.attempt,
            segment_bytes=options.segment_bytes,
            share=_REMOTE_RING_SHARE if self.pipeline.pipelined else _RING_SHARE,
            documents=self.documents.update,
            run_id=run_id,
        )
        self.leftovers = False  # whether unneeded files may exist
        self._started = 0  # batches of the reader that are being written
        self._oldest: float | None = None  # when the oldest record in the ring was first seen

    @property
    def has_pending(self) -> bool:
        """Whether the write of drained batches, kept rows or documents has not started yet."""
        return bool(len(self.reader.batches) > self._started or self.backlog or self.documents.unsaved)

    def flush_due(self, now: float, ending: bool) -> bool:
        """Whether the records in the ring should be written now. ending: the trainer has ended."""
        if not self.reader.unread()[0]:
            self._oldest = None
            return False
        if self._oldest is None:
            self._oldest = now
        delayed = now - self._oldest >= self._options.visible_delay.total_seconds()
        return ending or delayed or self.reader.full

    def flush(self, now: float) -> bool:
        """Start to write pending objects, or else the next batch. Return False if neither is possible.

        Raises SinkError.
        """
        if not self.pipeline.room:
            return False
        if self.documents.unsaved:
            return self._save_documents()
        if self.backlog:
            return self._write_backlog()
        if self._started == len(self.reader.batches) and self._take(now) is None:
            return False
        return self._save_documents() if self.documents.unsaved else self._start_batch()

    def resume(self, begun: list[FileRange]) -> bool:
        """Continue after the files of earlier flushers. begun: files that they had begun to write.

        Returns False if the ring is not readable yet; call again in this case.
        """
        if not self.reader.resume(self._ledger.covered):
            return False
        lost = self.reader.skip_lost()
        if lost is not None:  # rows without payload that an earlier flusher had only in memory
            gap = IndexGap(first_step=None, last_step=None, tensors=None, bytes=None, reason="io_error")
            self.backlog.append_gap(lost, gap)
        self.reader.repeat(begun)
        return True

    def reset(self) -> None:
        """Start all writes again after a failed write, because the later writes have failed too."""
        self._started = 0

    def write_again(self, covered: int | None, gaps: list[IndexGap]) -> None:
        """Write the files of a removed run folder again. covered: its last ticket. gaps: replace its rows."""
        self.documents.restore()
        for batch in self.reader.batches:
            batch.forget_written()
        if covered is not None:
            self.backlog.prepend_gaps(FileRange(self._ledger.worker, self._ledger.attempt, 0, covered), gaps)

    def give_up_oldest(self) -> bool:
        """Drop the payloads of the oldest batch if the ring is too full, so that the training never waits.

        Called while the sink fails. Returns False if no payload was dropped.
        """
        if self._consumer.fill <= self._options.give_up_fill:
            return False
        batch = self.reader.batches[0] if self.reader.batches else self._take(self._clock())
        if batch is None:
            return False
        try:
            file = batch.lost_file()
        except Exception as error:  # as in _start_batch
            self._give_up_broken(batch, error)
            return True
        self.leftovers = self.leftovers or batch.segment_written or self.pipeline.pipelined
        if self.backlog.has_room(file.size):
            batch.count_lost(self._consumer, rows_kept=True)
            self.backlog.append(file)
        else:
            self.backlog.append_gap(batch.range, batch.gap("io_error"))
            batch.count_lost(self._consumer, rows_kept=False)
        self.reader.release_oldest()
        return True

    def count_backlog_lost(self) -> None:
        """Count the rows of the backlog as dropped, because they cannot be written any more."""
        if self.backlog:
            from tdcore.flusher.index_table import IO_ERROR  # pyarrow is already loaded for the rows

            self._consumer.count_drop(IO_ERROR, self.backlog.uncounted_rows, 0)

    def count_ring_lost(self) -> None:
        """Count all records of the ring as dropped, because they cannot be written any more."""
        while self.reader.take() is not None:
            pass
        for batch in self.reader.batches:
            batch.count_lost(self._consumer, rows_kept=False)

    def _save_documents(self) -> bool:
        """Write all documents. They are rare, so no other object is written at the same time."""
        if self.pipeline.busy:
            return False
        for key, data in self.documents.unsaved:
            self.pipeline.start([(key, [data])], partial(self.documents.mark_saved, key, data))
        return True

    def _write_backlog(self) -> bool:
        """Write the first file of the backlog. One file is written at a time, before all batches."""
        if self.pipeline.busy:
            return False
        item = self.backlog.first()
        self.pipeline.start([(item.range.index_key, [memoryview(item.data)])], self._backlog_written)
        return True

    def _backlog_written(self) -> None:
        item = self.backlog.first()
        self.backlog.remove_first()
        self._record(item.range, item.size, item.summary)

    def _start_batch(self) -> bool:
        """Start to write the oldest batch that is not being written."""
        batch = self.reader.batches[self._started]
        self._ledger.begin(batch.range)
        try:
            objects = batch.objects()
        except Exception as error:  # a bug in tdcore: this batch must not block later batches
            if self.pipeline.busy:
                return False  # the earlier batches are written first
            self._give_up_broken(batch, error)
            return True
        self._started += 1
        try:
            self.pipeline.start(objects, self._batch_written, batch.mark_written)
        except SinkError:
            self._started -= 1
            raise
        return True

    def _batch_written(self) -> None:
        """Handle the oldest batch after it has become durable."""
        file = self.reader.batches[0].index_file()
        self._record(file.range, file.size, file.summary)
        self._started -= 1
        self.reader.release_oldest()

    def _take(self, now: float) -> FlushBatch | None:
        batch = self.reader.take()
        if batch is not None:
            self._oldest = now  # of the later records
        return batch

    def _record(self, place: FileRange, size: int, summary: IndexSummary) -> None:
        """Add an index file, which is durable, to the ledger."""
        self._ledger.add(IndexEntry(range=place, size=size, summary=summary))
        self._on_written(summary)

    def _give_up_broken(self, batch: FlushBatch, error: Exception) -> None:
        message = (
            f"cannot write records {batch.range.first} to {batch.range.last}: {type(error).__name__}: {error}"
        )
        worker = self._ledger.worker
        print_message(
            f"{worker}: {message}. This is a bug in tdcore: please report it. The records are skipped and "
            "counted as a gap."
        )
        self._report_error(message)
        self.leftovers = True
        self.backlog.append_gap(batch.range, batch.gap(f"internal: {type(error).__name__}: {error}"[:200]))
        batch.count_lost(self._consumer, rows_kept=False)
        self.reader.release_oldest()
