"""Flusher: drains one ring into one run until the trainer closes the ring or dies.

A flush takes records out of the ring (they stay in its memory), writes their payloads as one segment, then
their rows as one index file, and only then gives the memory back. So a flusher that dies at any point loses
nothing: the next one reads the same records under the same tickets, and those that an index file covers
already are passed over. To a sink that is far away several flushes are on their way at once; their memory is
given back in their order.

A sink that refuses never stops the training: records wait in the ring, the sink is tried again about every
second, and when more than half of the ring is waiting, the oldest payloads are given up. Their rows are
kept in memory as far as it is allowed, with status "lost"; beyond that only the extent of the gap is kept.
All is written and counted once the sink works again.

Threads: run() is called once, by the thread or process that is the flusher; nothing else may be called
meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tdcore.flusher.backlog import Backlog
from tdcore.flusher.control import ControlRequests
from tdcore.flusher.deadline import Deadline
from tdcore.flusher.documents import Documents
from tdcore.flusher.end import end_document
from tdcore.flusher.health import Health, say
from tdcore.flusher.intake import Intake
from tdcore.flusher.ledger import IndexEntry, Ledger
from tdcore.flusher.options import FlusherOptions
from tdcore.flusher.pipeline import Pipeline
from tdcore.flusher.reporter import Reporter
from tdcore.flusher.summary import Gap, IndexSummary
from tdcore.format.layout import COLLECTIONS_KEY, RUN_KEY, FileRange, end_key
from tdcore.sinks.base import Sink, SinkError, SinkKeyError

if TYPE_CHECKING:
    from tdcore._core import Consumer
    from tdcore.flusher.batch import Batch
    from tdcore.flusher.compactor import Compactor
    from tdcore.flusher.journal import Journal

__all__ = ["Flusher"]

_RING_SHARE = 4  # a flush takes at most this part of the ring, so that space comes back in pieces
_FAR_RING_SHARE = 16  # the same where several are on their way at once


def _never() -> bool:
    return False


class Flusher:
    """Serves the ring behind `consumer` for one worker and attempt, into `sink`.

    journal: of this worker and attempt, where the sink is far away. run_id: written into every index file
    and the end, so that readers tell files of another run. clock: monotonic seconds. Nothing is written
    before run().
    """

    def __init__(
        self,
        consumer: Consumer,
        sink: Sink,
        *,
        worker: str,
        attempt: int,
        options: FlusherOptions | None = None,
        journal: Journal | None = None,
        run_id: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._sink = sink
        self._options = options or FlusherOptions()
        self._pipeline = Pipeline(sink)
        share = _FAR_RING_SHARE if self._pipeline.pipelined else _RING_SHARE
        self._clock = clock
        self._worker = worker
        self._attempt = attempt
        self._ledger = Ledger(sink, worker=worker, attempt=attempt, journal=journal)
        self._reporter = Reporter(consumer, self._ledger, heartbeat=self._options.heartbeat.total_seconds())
        self._documents = Documents(sink)
        self._health = Health(retry_delay=self._options.retry_delay.total_seconds(), where=worker)
        self._run_id = run_id
        self._backlog = Backlog(self._options.kept_bytes, run_id)
        self._intake = Intake(
            consumer,
            worker=worker,
            attempt=attempt,
            segment_bytes=self._options.segment_bytes,
            share=share,
            documents=self._documents.update,
            run_id=run_id,
        )
        self._started = 0  # so many batches of the intake are on their way
        self._compactor: Compactor | None = None  # made when it is needed: it imports pyarrow
        self._owes_merge = False  # something was written since the last look for overdue merges
        self._recovered = False
        self._end_written = False
        self._ended = False  # end/ is written and nothing is left to do
        self._strays = False  # files may lie there that nothing needs
        self._oldest: float | None = None  # when the oldest record in the ring was first seen
        self._control = ControlRequests(sink, attempt, self._options, consumer)
        self._deadline = Deadline(self._options.end_deadline.total_seconds())

    def run(
        self, producer_dead: Callable[[], bool] = _never, wait: Callable[[float], object] = time.sleep
    ) -> bool:
        """Work until the trainer has closed the ring or died, and everything is written.

        producer_dead: whether the trainer has died. wait: sleeps so many seconds, or less.
        True: all is written. False: the sink refused for `end_deadline` at the end; what is left stays in
        the ring.
        Raises only for faults that another flusher might not meet (no memory, a ring that makes no sense).
        """
        pause = self._options.min_poll.total_seconds()
        while True:
            now = self._clock()
            ending = self._look_at_trainer(producer_dead, now)
            self._reporter.beat(now, self._pipeline.trouble)
            self._control.poll(now)  # also while the sink refuses
            worked = self._work(now, ending)
            if self._ended:
                return True
            if worked:
                pause = self._options.min_poll.total_seconds()
                continue
            if ending and self._deadline.passed(now, self._patience()):
                if not self._pipeline.busy:
                    self._abandon()
                    return False
                self._pipeline.relieve()
            wait(pause)
            pause = self._next_pause(pause)

    def _look_at_trainer(self, producer_dead: Callable[[], bool], now: float) -> bool:
        closing = self._consumer.closing  # before the look at its life: a clean end closes, then dies
        self._intake.dead = self._intake.dead or producer_dead()
        if not (closing or self._intake.dead):
            return False
        self._deadline.ending(now)
        self._deadline.left(self._pipeline.kept_back, now)
        return True

    def _work(self, now: float, ending: bool) -> bool:
        """The most urgent thing there is to do; False when there is none."""
        if self._health.waiting(now):
            return not ending and self._give_up_oldest()
        try:
            if not self._recovered:
                return self._recover()
            worked = self._pipeline.collect()
            if self._pipeline.busy and self._consumer.fill > self._options.spill_fill:
                self._pipeline.relieve()
            if self._owes_merge and self._catch_up(now):
                return True
            if self._something_waits() or self._due(now, ending):
                self._owes_merge = self._flush(now)
                return self._owes_merge or worked
            if self._pipeline.busy:
                return worked
            if ending and not self._consumer.pending_records:
                return self._finish(now)
            return not ending and self._merge(now)
        except SinkError as error:
            self._refused(error, now)
            return False

    # Taking and writing

    def _due(self, now: float, ending: bool) -> bool:
        """Whether what is in the ring should be written now."""
        if not self._intake.waiting()[0]:
            self._oldest = None
            return False
        if self._oldest is None:
            self._oldest = now
        delayed = now - self._oldest >= self._options.visible_delay.total_seconds()
        return ending or delayed or self._intake.full

    def _something_waits(self) -> bool:
        """Whether there is something to start that came out of the ring before."""
        return bool(len(self._intake.batches) > self._started or self._backlog or self._documents.unsaved)

    def _flush(self, now: float) -> bool:
        """Start to write what waits, or else the next batch; False when neither can be. Raises SinkError."""
        if not self._pipeline.room:
            return False
        if self._documents.unsaved:
            return self._save_documents()
        if self._backlog:
            return self._write_backlog()
        if self._started == len(self._intake.batches) and self._take(now) is None:
            return False
        return self._save_documents() if self._documents.unsaved else self._start()

    def _save_documents(self) -> bool:
        """They are rare: nothing else is on its way meanwhile."""
        if self._pipeline.busy:
            return False
        for key, data in self._documents.unsaved:
            self._pipeline.start([(key, [data])], partial(self._documents.saved, key, data))
        return True

    def _write_backlog(self) -> bool:
        """One after the other, and before everything else."""
        if self._pipeline.busy:
            return False
        item = self._backlog.first()
        self._pipeline.start([(item.range.index_key, [memoryview(item.data)])], self._backlog_written)
        return True

    def _backlog_written(self) -> None:
        item = self._backlog.first()
        self._backlog.written()
        self._enter(item.range, item.size, item.summary)

    def _start(self) -> bool:
        """The oldest batch that is not on its way."""
        batch = self._intake.batches[self._started]
        self._ledger.begin(batch.range)
        try:
            objects = batch.objects()
        except Exception as error:  # a fault of ours: this batch must not stop all that follow
            if self._pipeline.busy:
                return False  # its turn comes when those before it are written
            self._give_up_broken(batch, error)
            return True
        self._started += 1
        try:
            self._pipeline.start(objects, self._written, batch.wrote)
        except SinkError:
            self._started -= 1
            raise
        return True

    def _written(self) -> None:
        """The oldest batch is durable."""
        file = self._intake.batches[0].index_file()
        self._enter(file.range, file.size, file.summary)
        self._started -= 1
        self._intake.give_back()

    def _take(self, now: float) -> Batch | None:
        batch = self._intake.take()
        if batch is not None:
            self._oldest = now  # of what comes behind it
        return batch

    def _enter(self, place: FileRange, size: int, summary: IndexSummary) -> None:
        """An index file is durable: book it, and tell the trainer."""
        self._ledger.add(IndexEntry(range=place, size=size, summary=summary))
        self._deadline.moved(self._clock())
        self._reporter.entered(summary, "" if self._health.worked() else None)

    # Trouble

    def _refused(self, error: SinkError, now: float) -> None:
        self._started = 0
        news = self._health.refused(error, now)
        if error.kind == "gone" and not isinstance(error, SinkKeyError):
            self._start_over()
        if news:
            self._reporter.tell(str(error))

    def _start_over(self) -> None:
        """The run's folder was removed: what was in it is a gap, and the small files are put back."""
        self._documents.restore()
        self._end_written = False
        for batch in self._intake.batches:
            batch.forget_written()
        if not self._ledger.entries:
            return
        covered = self._ledger.covered
        gaps = self._ledger.forget()
        self._backlog.prepend_gaps(FileRange(self._worker, self._attempt, 0, covered), gaps)
        if self._compactor is not None:
            self._compactor.forget()

    def _give_up_oldest(self) -> bool:
        """While the sink refuses: make room for what comes, so that the training never waits for it."""
        if not self._recovered or self._consumer.fill <= self._options.give_up_fill:
            return False
        batch = self._intake.batches[0] if self._intake.batches else self._take(self._clock())
        if batch is None:
            return False
        try:
            file = batch.lost_file()
        except Exception as error:  # as in _flush
            self._give_up_broken(batch, error)
            return True
        self._strays = self._strays or batch.segment_written or self._pipeline.pipelined
        if self._backlog.has_room(file.size):
            batch.count_lost(self._consumer, rows_kept=True)
            self._backlog.append(file)
        else:
            self._backlog.append_gap(batch.range, batch.gap("io_error"))
            batch.count_lost(self._consumer, rows_kept=False)
        self._intake.give_back()
        return True

    def _give_up_broken(self, batch: Batch, error: Exception) -> None:
        message = (
            f"cannot write records {batch.range.first} to {batch.range.last}: {type(error).__name__}: {error}"
        )
        say(f"{self._worker}: {message}. This is a fault of tdcore; they are left out and recorded as a gap.")
        self._reporter.tell(message)
        self._strays = True
        self._backlog.append_gap(batch.range, batch.gap(f"internal: {type(error).__name__}: {error}"[:200]))
        batch.count_lost(self._consumer, rows_kept=False)
        self._intake.give_back()

    def _patience(self) -> float | None:
        """Seconds that a disk without space is waited for at the end; None for other troubles."""
        full = self._health.full and not self._pipeline.pipelined
        return self._options.full_deadline.total_seconds() if full else None

    def _abandon(self) -> None:
        """What is left stays in the ring, whose owner reports it. On a full disk it is counted as dropped.

        Elsewhere a later flusher may still write it.
        """
        consumer, reason = self._consumer, self._health.message or "its last records are not complete"
        lost = f"{consumer.pending_records} records ({consumer.pending_bytes} bytes) of the ring"
        full = self._patience() is not None
        patience = self._options.full_deadline if full else self._options.end_deadline
        message = f"giving up after {patience}: {reason}; not written: {lost}"
        if self._backlog:
            message += f" and {self._backlog.rows} rows without payload"
        if full and self._backlog:
            from tdcore.flusher.table import IO_ERROR  # imports pyarrow, which the rows have brought

            consumer.count_drop(IO_ERROR, self._backlog.uncounted_rows, 0)
        if full and self._recovered:
            while self._intake.take() is not None:
                pass
            for batch in self._intake.batches:
                batch.count_lost(consumer, rows_kept=False)
            message += "; they are lost, and counted in drops"
        say(f"{self._worker}: {message}")
        self._reporter.tell(message)

    # Start and end

    def _recover(self) -> bool:
        """Find out what is written already. Raises SinkError; what was done is kept for the next try."""
        begun: list[FileRange] = []
        if self._consumer.epoch == 1:
            self._ledger.start()
        else:
            begun = self._ledger.recover()
            self._strays = self._pipeline.pipelined
        if not self._pipeline.pipelined:  # a folder may be removed, and is then made again
            claim = f"attempts/{self._attempt:04d}-{self._worker}.json"
            self._documents.load([RUN_KEY, COLLECTIONS_KEY, claim])
        if not self._intake.resume(self._ledger.covered):
            return False
        lost = self._intake.skip_lost()
        if lost is not None:  # rows of given-up payloads died with the flusher that kept them
            gap = Gap(first_step=None, last_step=None, tensors=None, bytes=None, reason="io_error")
            self._backlog.append_gap(lost, gap)
        self._intake.repeat(begun)
        self._recovered = True
        return True

    def _finish(self, now: float) -> bool:
        """Everything is written: say so in end/, then tidy up. Raises SinkError until end/ is there."""
        if not self._end_written:
            self._put_end()
            self._end_written = True
        if self._pipeline.kept_back:
            return self._await_delivery(now)
        try:
            merger = self._merger()
            if merger is not None:
                merger.finish()
            if self._strays:
                self._ledger.sweep()
        except SinkError as error:
            if error.kind == "gone":
                raise
            self._reporter.tell(f"the last merge was left out: {error}")
        self._ended = True
        return True

    def _await_delivery(self, now: float) -> bool:
        """All is durable; what the local disk keeps back is given some time to get where it belongs."""
        if not self._deadline.passed(now):
            return False
        say(f"{self._worker}: {self._pipeline.what_is_kept_back()}")
        self._ended = True
        return True

    def _put_end(self) -> None:
        clean, storage = self._consumer.closing, self._pipeline.report()
        document = end_document(
            self._ledger, self._consumer, clean=clean, storage=storage, run_id=self._run_id
        )
        self._sink.put(end_key(self._worker, self._attempt), [document])
        self._deadline.moved(self._clock())
        if self._health.worked():
            self._reporter.tell("")

    # Beside the data

    def _merge(self, now: float) -> bool:
        """Nothing urgent to do: merge or delete some files. False when there is nothing to do either."""
        merger = self._merger()
        return merger is not None and merger.step(now)

    def _catch_up(self, now: float) -> bool:
        """At most one piece of overdue merging for each write: so the number of files is bounded at any rate,
        and what is written does not wait for long.
        """
        self._owes_merge = False
        merger = self._merger()
        return merger is not None and merger.overdue(now) and merger.step(now)

    def _next_pause(self, pause: float) -> float:
        """Half as long again as the last one: about a third of the time since there was work to do."""
        options = self._options
        filling = self._intake.filling or self._pipeline.busy
        longest = min(options.busy_poll, options.max_poll) if filling else options.max_poll
        return min(pause * 1.5, longest.total_seconds())

    def _merger(self) -> Compactor | None:
        if self._compactor is None and len(self._ledger.entries) > 1:
            from tdcore.flusher.compactor import Compactor  # imports pyarrow

            self._compactor = Compactor(self._sink, self._ledger, self._options, self._clock)
        return self._compactor
