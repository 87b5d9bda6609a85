"""Flusher: writer of the records of one ring to one run, until the trainer closes the ring or dies.

A flush takes records out of the ring (their memory stays in use), writes their payloads as one segment, then
their rows as one index file, and only then releases the memory. A flusher can therefore die at any point
without a loss: the next flusher reads the same records with the same tickets, and skips records that are in
an index file. With a remote sink several flushes run at the same time; their memory is released in the order
of the flushes.

A failing sink never stops the training. Records wait in the ring, and the sink is retried about every second.
When more than half of the ring is full, the oldest payloads are dropped: their rows stay in memory up to a
limit, with status "lost"; above the limit only the range of the gap is kept. Rows and gaps are written and
counted when the sink works again.

run_writer.py writes the files; this module has the order of work, the recovery and the end.
Threads: the thread or process that is the flusher calls run() once; no other method is called during run().
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tdcore.flusher.control_requests import ControlRequests
from tdcore.flusher.deadline import Deadline
from tdcore.flusher.end_document import end_document
from tdcore.flusher.ledger import Ledger
from tdcore.flusher.messages import print_message
from tdcore.flusher.options import FlusherOptions
from tdcore.flusher.reporter import Reporter
from tdcore.flusher.run_writer import RunWriter
from tdcore.flusher.sink_health import SinkHealth
from tdcore.flusher.sink_rate import SinkRate
from tdcore.format.layout import COLLECTIONS_KEY, RUN_KEY, FileRange, end_key
from tdcore.sinks.base import Sink, SinkError, SinkKeyError

if TYPE_CHECKING:
    from tdcore._core import Consumer
    from tdcore.flusher.compactor import Compactor
    from tdcore.flusher.index_summary import IndexSummary
    from tdcore.flusher.recorders import RowRecorder
    from tdcore.flusher.upload_journal import UploadJournal

__all__ = ["Flusher"]


def _never() -> bool:
    return False


class Flusher:
    """The flusher of one worker and attempt, which writes to `sink`. No file is written before run().

    Args:
        consumer: The reading end of the ring.
        sink: The run.
        worker: Name of the worker.
        attempt: Number of the attempt.
        options: Sizes and times.
        journal: Journal of this worker and attempt, if the sink is remote.
        recorders: Write further rows, such as samples of the machine.
        run_id: Stored in every index file and in the end file, so that readers detect files of another run.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        consumer: Consumer,
        sink: Sink,
        *,
        worker: str,
        attempt: int,
        options: FlusherOptions | None = None,
        journal: UploadJournal | None = None,
        recorders: Sequence[RowRecorder] = (),
        run_id: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._sink = sink
        self._options = options or FlusherOptions()
        self._clock = clock
        self._worker = worker
        self._attempt = attempt
        self._run_id = run_id
        self._ledger = Ledger(sink, worker=worker, attempt=attempt, journal=journal)
        self._health = SinkHealth(retry_delay=self._options.retry_delay.total_seconds(), where=worker)
        self._deadline = Deadline(self._options.end_deadline.total_seconds())
        self._writer = RunWriter(
            consumer,
            sink,
            self._ledger,
            written=self._report_written,
            report_error=self._report_error,
            options=self._options,
            run_id=run_id,
            clock=clock,
        )
        self._rate = SinkRate(self._writer.pipeline, clock)
        heartbeat = self._options.heartbeat.total_seconds()
        self._reporter = Reporter(consumer, self._ledger, heartbeat=heartbeat, rate=self._rate)
        self._recorders = recorders
        self._control = ControlRequests(sink, attempt, self._options, consumer)
        self._compactor: Compactor | None = None  # made on first use: it imports pyarrow
        self._merge_check_due = False  # a file was written since the last check for overdue merges
        self._recovered = False
        self._end_written = False
        self._ended = False  # the end file was written, and no work is left

    def run(
        self, producer_dead: Callable[[], bool] = _never, wait: Callable[[float], object] = time.sleep
    ) -> bool:
        """Work until the trainer has closed the ring or died, and all records are written.

        Args:
            producer_dead: Whether the trainer has died.
            wait: Sleeps for a number of seconds, or less.

        Returns:
            True if all records are written. False if the sink failed for `end_deadline` at the end; the
            remaining records stay in the ring.

        Raises:
            Exception: Only for faults that a new flusher might not have (no memory, a corrupt ring).
        """
        pause = self._options.min_poll.total_seconds()
        while True:
            now = self._clock()
            ending = self._trainer_has_ended(producer_dead, now)
            self._reporter.heartbeat(now, self._writer.pipeline.trouble)
            self._control.poll(now)  # also while the sink fails
            self._poll_recorders(now)
            worked = self._work(now, ending)
            if self._ended:
                return True
            if worked:
                pause = self._options.min_poll.total_seconds()
                continue
            if ending and self._deadline.expired(now, self._full_disk_patience()):
                if not self._writer.pipeline.busy:
                    self._abandon()
                    return False
                self._writer.pipeline.relieve()
            wait(pause)
            pause = self._next_pause(pause)

    def _trainer_has_ended(self, producer_dead: Callable[[], bool], now: float) -> bool:
        closing = self._consumer.closing  # before the check for death: a trainer closes the ring, then exits
        reader = self._writer.reader
        reader.trainer_dead = reader.trainer_dead or producer_dead()
        if not (closing or reader.trainer_dead):
            return False
        self._deadline.start(now)
        self._deadline.set_kept_back(self._writer.pipeline.kept_back, now)
        return True

    def _work(self, now: float, ending: bool) -> bool:
        """Do the most urgent work. Return False if there is no work."""
        writer = self._writer
        if self._health.in_retry_delay(now):
            return not ending and self._recovered and writer.give_up_oldest()
        try:
            if not self._recovered:
                return self._recover()
            worked = writer.pipeline.collect()
            self._rate.update()
            if writer.pipeline.busy and self._consumer.fill > self._options.spill_fill:
                writer.pipeline.relieve()
            if self._merge_check_due:
                with self._rate.writing():  # this merge delays writes
                    merged = self._merge_if_overdue(now)
                if merged:
                    return True
            if writer.has_pending or writer.flush_due(now, ending):
                with self._rate.writing():
                    self._merge_check_due = writer.flush(now)
                return self._merge_check_due or worked
            if writer.pipeline.busy:
                return worked
            if ending and not self._consumer.pending_records:
                return self._finish(now)
            return not ending and self._merge(now)
        except SinkError as error:
            self._handle_sink_error(error, now)
            return False

    def _report_written(self, summary: IndexSummary) -> None:
        """Report that an index file is durable."""
        self._deadline.record_success(self._clock())
        self._reporter.report_index_file(summary, "" if self._health.record_success() else None)

    def _report_error(self, error: str) -> None:
        self._reporter.report_error(error)

    def _next_pause(self, pause: float) -> float:
        """1.5 times the last pause, so a pause is about a third of the time since the last work."""
        options = self._options
        filling = self._writer.reader.filling or self._writer.pipeline.busy
        longest = min(options.busy_poll, options.max_poll) if filling else options.max_poll
        return min(pause * 1.5, longest.total_seconds())

    # Failures of the sink

    def _handle_sink_error(self, error: SinkError, now: float) -> None:
        self._writer.reset()
        new = self._health.record_failure(error, now)
        if error.kind == "gone" and not isinstance(error, SinkKeyError):
            self._write_again()
        if new:
            self._reporter.report_error(str(error))

    def _write_again(self) -> None:
        """Record a gap for the rows of a removed run folder, and write the small files again."""
        self._end_written = False
        covered = self._ledger.covered if self._ledger.entries else None
        gaps = self._ledger.forget() if covered is not None else []
        self._writer.write_again(covered, gaps)
        if covered is not None and self._compactor is not None:
            self._compactor.forget()

    def _full_disk_patience(self) -> float | None:
        """Seconds to wait at the end for space on a full disk; None for other failures."""
        full = self._health.full and not self._writer.pipeline.pipelined
        return self._options.full_deadline.total_seconds() if full else None

    def _abandon(self) -> None:
        """Stop, and leave all remaining records in the ring, whose owner reports the records.

        With a full disk the records are counted as dropped. Otherwise a later flusher may still write them.
        """
        for recorder in self._recorders:
            with contextlib.suppress(SinkError):
                recorder.finish(self._clock())
        consumer, reason = self._consumer, self._health.message or "its last records are not complete"
        lost = f"{consumer.pending_records} records ({consumer.pending_bytes} bytes) of the ring"
        full = self._full_disk_patience() is not None
        patience = self._options.full_deadline if full else self._options.end_deadline
        message = f"stopped after {patience}: {reason}; not written: {lost}"
        backlog = self._writer.backlog
        if backlog:
            message += f" and {backlog.rows} rows without payload"
        if full:
            self._writer.count_backlog_lost()
        if full and self._recovered:
            self._writer.count_ring_lost()
            message += "; they are lost, and counted in drops"
        print_message(f"{self._worker}: {message}")
        self._reporter.report_error(message)

    # Start and end

    def _recover(self) -> bool:
        """Read the files of earlier flushers. Return False if the ring is not readable yet.

        Raises SinkError; the next call continues where this one failed.
        """
        begun: list[FileRange] = []
        if self._consumer.epoch == 1:
            self._ledger.start()
        else:
            begun = self._ledger.recover()
            self._writer.leftovers = self._writer.pipeline.pipelined
        if not self._writer.pipeline.pipelined:  # a removed folder is written again
            claim = f"attempts/{self._attempt:04d}-{self._worker}.json"
            self._writer.documents.load([RUN_KEY, COLLECTIONS_KEY, claim])
        if not self._writer.resume(begun):
            return False
        self._recovered = True
        return True

    def _finish(self, now: float) -> bool:
        """After all records are written: write the end file, then merge and clean up.

        Raises SinkError until the end file is written.
        """
        if not self._end_written:
            for recorder in self._recorders:
                recorder.finish(now)
            self._put_end()
            self._end_written = True
        if self._writer.pipeline.kept_back:
            return self._wait_for_upload(now)
        try:
            compactor = self._compactor_if_needed()
            if compactor is not None:
                compactor.finish()
            if self._writer.leftovers:
                self._ledger.sweep()
            for recorder in self._recorders:
                recorder.merge_all()
        except SinkError as error:
            if error.kind == "gone":
                raise
            self._reporter.report_error(f"the last merge was skipped: {error}")
        self._ended = True
        return True

    def _poll_recorders(self, now: float) -> None:
        if self._end_written:
            return  # they are closed, while the spool is uploaded
        try:
            for recorder in self._recorders:
                recorder.poll(now)
        except SinkError as error:
            self._handle_sink_error(error, now)

    def _wait_for_upload(self, now: float) -> bool:
        """Wait until the spool is uploaded, at most until the deadline. All objects are already durable."""
        if not self._deadline.expired(now):
            return False
        print_message(f"{self._worker}: {self._writer.pipeline.kept_back_message()}")
        self._ended = True
        return True

    def _put_end(self) -> None:
        clean, storage = self._consumer.closing, self._writer.pipeline.report()
        document = end_document(
            self._ledger, self._consumer, clean=clean, storage=storage, run_id=self._run_id
        )
        self._sink.put(end_key(self._worker, self._attempt), [document])
        self._deadline.record_success(self._clock())
        if self._health.record_success():
            self._reporter.report_error("")

    # Merging

    def _merge(self, now: float) -> bool:
        """Merge or delete some files, if there is no other work. Return False if there are no such files."""
        compactor = self._compactor_if_needed()
        return compactor is not None and compactor.step(now)

    def _merge_if_overdue(self, now: float) -> bool:
        """Do at most one overdue merge for each write.

        The number of files is therefore bounded at any rate of writes, and a merge delays writes only
        briefly.
        """
        self._merge_check_due = False
        compactor = self._compactor_if_needed()
        return compactor is not None and compactor.overdue(now) and compactor.step(now)

    def _compactor_if_needed(self) -> Compactor | None:
        if self._compactor is None and len(self._ledger.entries) > 1:
            from tdcore.flusher.compactor import Compactor  # imports pyarrow

            self._compactor = Compactor(self._sink, self._ledger, self._options, self._clock)
        return self._compactor
