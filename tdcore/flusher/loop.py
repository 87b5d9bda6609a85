"""Flusher: drains one ring into one run until the trainer closes the ring or dies.

A flush takes records out of the ring (they stay in its memory), writes their payloads as one segment, then
their rows as one index file, and only then gives the memory back. So a flusher that dies at any point loses
nothing: the next one reads the same records under the same tickets, and those that an index file covers
already are passed over.

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
from typing import TYPE_CHECKING

from tdcore.flusher.backlog import Backlog
from tdcore.flusher.documents import Documents
from tdcore.flusher.end import end_document
from tdcore.flusher.health import Health, say
from tdcore.flusher.ledger import IndexEntry, Ledger
from tdcore.flusher.options import FlusherOptions
from tdcore.flusher.summary import Gap, IndexSummary
from tdcore.layout import COLLECTIONS_KEY, RUN_KEY, FileRange, end_key, stop_key
from tdcore.sinks.base import Sink, SinkError, SinkKeyError

if TYPE_CHECKING:
    from tdcore._core import Consumer, Drained
    from tdcore.flusher.batch import Batch
    from tdcore.flusher.compactor import Compactor
    from tdcore.flusher.table import NameTable

__all__ = ["Flusher"]

_RING_SHARE = 4  # a flush takes at most this part of the ring, so that space comes back in pieces
_SOON = 8  # from this part of a flush on, the next one is looked for often
_MANY_BYTES = 1 << 62
_MAX_STOP_BYTES = 8192  # what the control page holds
_BARE_STOP = '{"reason": "stop requested"}'


def _never() -> bool:
    return False


class Flusher:
    """Serves the ring behind `consumer` for one worker and attempt, into `sink`.

    clock: monotonic seconds. Nothing is written before run().
    """

    def __init__(
        self,
        consumer: Consumer,
        sink: Sink,
        *,
        worker: str,
        attempt: int,
        options: FlusherOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._sink = sink
        self._options = options or FlusherOptions()
        self._batch_bytes = min(self._options.segment_bytes, consumer.data_bytes // _RING_SHARE)
        self._batch_records = consumer.slots // _RING_SHARE
        self._clock = clock
        self._worker = worker
        self._attempt = attempt
        self._ledger = Ledger(sink, worker=worker, attempt=attempt)
        self._documents = Documents(sink)
        self._health = Health(retry_delay=self._options.retry_delay.total_seconds(), where=worker)
        self._backlog = Backlog(self._options.kept_bytes, self._encode_empty)
        self._names: NameTable | None = None  # made with the first batch: it imports pyarrow
        self._compactor: Compactor | None = None  # likewise
        self._batch: Batch | None = None  # drained and not yet given back
        self._next_ticket = 0  # where the next index file begins
        self._dead = False  # the trainer has died
        self._recovered = False
        self._ended = False  # end/ is written and nothing is left to do
        self._stray_segments = False  # a segment may lie there that no index file names
        self._oldest: float | None = None  # when the oldest record in the ring was first seen
        self._beat_at = self._stop_poll_at = 0.0
        self._stop_seen = False
        self._last_success = 0.0
        self._ending_since: float | None = None

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
            self._beat(now)
            self._poll_stop(now)
            worked = self._work(now, ending)
            if self._ended:
                return True
            if worked:
                pause = self._options.min_poll.total_seconds()
                continue
            if ending and self._out_of_time(now):
                self._abandon()
                return False
            wait(pause)
            pause = self._next_pause(pause)

    def _look_at_trainer(self, producer_dead: Callable[[], bool], now: float) -> bool:
        closing = self._consumer.closing  # before the look at its life: a clean end closes, then dies
        self._dead = self._dead or producer_dead()
        if not (closing or self._dead):
            return False
        if self._ending_since is None:
            self._ending_since = now
        return True

    def _work(self, now: float, ending: bool) -> bool:
        """The most urgent thing there is to do; False when there is none."""
        if self._health.waiting(now):
            return not ending and self._give_up_oldest()
        try:
            if not self._recovered:
                return self._recover()
            if self._batch is not None or self._backlog or self._documents.unsaved or self._due(now, ending):
                return self._flush(now)
            if ending and not self._consumer.pending_records:
                return self._finish()
            return not ending and self._merge(now)
        except SinkError as error:
            self._refused(error, now)
            return False

    # Taking and writing

    def _due(self, now: float, ending: bool) -> bool:
        """Whether what is in the ring should be written now."""
        records = self._consumer.pending_records
        if not records:
            self._oldest = None
            return False
        if self._oldest is None:
            self._oldest = now
        options = self._options
        return (
            ending
            or now - self._oldest >= options.visible_delay.total_seconds()
            or self._consumer.pending_bytes >= self._batch_bytes
            or records >= self._batch_records
        )

    def _flush(self, now: float) -> bool:
        """Write what waits, then the next batch. False when the ring had nothing ready. Raises SinkError."""
        self._documents.save()
        while self._backlog:
            item = self._backlog.first()
            self._sink.put(item.range.index_key, [memoryview(item.data)])
            self._backlog.written()
            self._enter(item.range, item.size, item.summary)
        batch = self._batch or self._take(now)
        if batch is None:
            return False
        self._documents.save()
        try:
            batch.write(self._sink)
        except SinkError:
            raise
        except Exception as error:  # a fault of ours: this batch must not stop all that follow
            self._give_up_broken(batch, error)
            return True
        file = batch.index_file()
        self._enter(file.range, file.size, file.summary)
        self._consumer.release(batch.drained)
        self._batch = None
        return True

    def _take(self, now: float) -> Batch | None:
        """The next batch out of the ring, None when its oldest record is not complete yet."""
        drained = self._consumer.drain(self._batch_bytes, self._batch_records, self._dead)
        if drained.end_ticket == drained.first_ticket:
            return None
        self._oldest = now  # of what comes behind it
        self._documents.update(drained.documents)
        place = FileRange(self._worker, self._attempt, self._next_ticket, drained.end_ticket - 1)
        self._next_ticket = drained.end_ticket
        self._batch = self._make_batch(drained, place)
        return self._batch

    def _enter(self, place: FileRange, size: int, summary: IndexSummary) -> None:
        """An index file is durable: book it, and tell the trainer."""
        self._ledger.add(IndexEntry(range=place, size=size, summary=summary))
        self._last_success = self._clock()
        self._consumer.report(
            records=summary.records,
            bytes=summary.payload_bytes,
            rows=summary.rows,
            last_step=self._last_step(),
            error="" if self._health.worked() else None,
        )

    # Trouble

    def _refused(self, error: SinkError, now: float) -> None:
        news = self._health.refused(error, now)
        if error.kind == "gone" and not isinstance(error, SinkKeyError):
            self._start_over()
        if news:
            self._report(str(error))

    def _start_over(self) -> None:
        """The run's folder was removed: what was in it is a gap, and the small files are put back."""
        self._documents.restore()
        if self._batch is not None:
            self._batch.forget_written()
        if not self._ledger.entries:
            return
        total, covered = self._ledger.totals(), self._ledger.covered
        gap = Gap(
            first_step=None,
            last_step=total.last_step,
            tensors=total.rows,
            bytes=total.payload_bytes,
            reason="gone",
        )
        self._ledger.forget()
        self._backlog.prepend_gap(FileRange(self._worker, self._attempt, 0, covered), gap)
        if self._compactor is not None:
            self._compactor.forget()

    def _give_up_oldest(self) -> bool:
        """While the sink refuses: make room for what comes, so that the training never waits for it."""
        if not self._recovered or self._consumer.fill <= self._options.give_up_fill:
            return False
        batch = self._batch or self._take(self._clock())
        if batch is None:
            return False
        try:
            file = batch.lost_file()
        except Exception as error:  # as in _flush
            self._give_up_broken(batch, error)
            return True
        self._stray_segments = self._stray_segments or batch.segment_written
        if self._backlog.has_room(file.size):
            batch.count_lost(self._consumer, rows_kept=True)
            self._backlog.append(file)
        else:
            batch.count_lost(self._consumer, rows_kept=False)
            self._backlog.append_gap(batch.range, batch.gap("io_error"))
        self._consumer.release(batch.drained)
        self._batch = None
        return True

    def _give_up_broken(self, batch: Batch, error: Exception) -> None:
        message = (
            f"cannot write records {batch.range.first} to {batch.range.last}: {type(error).__name__}: {error}"
        )
        say(f"{self._worker}: {message}. This is a fault of tdcore; they are left out and recorded as a gap.")
        self._report(message)
        self._stray_segments = True
        batch.count_lost(self._consumer, rows_kept=False)
        self._backlog.append_gap(batch.range, batch.gap(f"internal: {type(error).__name__}: {error}"[:200]))
        self._consumer.release(batch.drained)
        self._batch = None

    def _out_of_time(self, now: float) -> bool:
        since = max(self._ending_since or now, self._last_success)
        return now - since >= self._options.end_deadline.total_seconds()

    def _abandon(self) -> None:
        consumer, reason = self._consumer, self._health.message or "its last records are not complete"
        lost = f"{consumer.pending_records} records ({consumer.pending_bytes} bytes) of the ring"
        message = f"giving up after {self._options.end_deadline}: {reason}; not written: {lost}"
        if self._backlog:
            message += f" and {self._backlog.rows} rows without payload"
        say(f"{self._worker}: {message}")
        self._report(message)

    # Start and end

    def _recover(self) -> bool:
        """Find out what is written already. Raises SinkError; what was done is kept for the next try."""
        if self._consumer.epoch > 1:
            self._ledger.recover()
        self._documents.load([RUN_KEY, COLLECTIONS_KEY, f"attempts/{self._attempt:04d}-{self._worker}.json"])
        self._next_ticket = self._ledger.covered + 1
        if not self._skip_written():
            return False
        head = self._consumer.head_ticket
        if head > self._next_ticket:  # rows of given-up payloads died with the flusher that kept them
            gap = Gap(first_step=None, last_step=None, tensors=None, bytes=None, reason="io_error")
            self._backlog.append_gap(FileRange(self._worker, self._attempt, self._next_ticket, head - 1), gap)
            self._next_ticket = head
        self._recovered = True
        return True

    def _skip_written(self) -> bool:
        """Give back what a flusher before this one has written and not given back. False: not ready yet."""
        while (ahead := self._next_ticket - self._consumer.head_ticket) > 0:
            drained = self._consumer.drain(_MANY_BYTES, ahead, self._dead)
            if drained.end_ticket == drained.first_ticket:
                return False
            self._documents.update(drained.documents)
            self._consumer.release(drained)
        return True

    def _finish(self) -> bool:
        """Everything is written: say so in end/, then tidy up. Raises SinkError until end/ is there."""
        self._put_end()
        try:
            merger = self._merger()
            if merger is not None:
                merger.finish()
            if self._stray_segments:
                self._ledger.sweep()
        except SinkError as error:
            if error.kind == "gone":
                raise
            self._report(f"the last merge was left out: {error}")
        self._ended = True
        return True

    def _put_end(self) -> None:
        document = end_document(self._ledger, self._consumer, clean=self._consumer.closing)
        self._sink.put(end_key(self._worker, self._attempt), [document])
        self._last_success = self._clock()
        if self._health.worked():
            self._report("")

    # Beside the data

    def _merge(self, now: float) -> bool:
        """Nothing urgent to do: merge or delete some files. False when there is nothing to do either."""
        merger = self._merger()
        return merger is not None and merger.step(now)

    def _beat(self, now: float) -> None:
        if now >= self._beat_at:
            self._report(None)
            self._beat_at = now + self._options.heartbeat.total_seconds()

    def _report(self, error: str | None) -> None:
        self._consumer.report(records=0, bytes=0, rows=0, last_step=self._last_step(), error=error)

    def _last_step(self) -> int:
        return max(
            (entry.summary.last_step for entry in self._ledger.entries[-1:] if entry.summary), default=-1
        )

    def _poll_stop(self, now: float) -> None:
        """Look for a request to stop the training, also while the sink refuses; it is passed on once."""
        if self._stop_seen or now < self._stop_poll_at:
            return
        self._stop_poll_at = now + self._options.stop_poll.total_seconds()
        try:
            text = self._sink.get(stop_key(self._attempt)).decode("utf-8", "replace")
        except SinkError:
            return
        fits = 0 < len(text.encode()) <= _MAX_STOP_BYTES
        self._consumer.request_stop(text if fits else _BARE_STOP)
        self._stop_seen = True

    def _next_pause(self, pause: float) -> float:
        """Half as long again as the last one: about a third of the time since there was work to do."""
        options, consumer = self._options, self._consumer
        filling = (
            consumer.pending_bytes * _SOON >= self._batch_bytes
            or consumer.pending_records * _SOON >= self._batch_records
        )
        longest = min(options.busy_poll, options.max_poll) if filling else options.max_poll
        return min(pause * 1.5, longest.total_seconds())

    def _make_batch(self, drained: Drained, place: FileRange) -> Batch:
        from tdcore.flusher.batch import Batch  # imports pyarrow, so not before there is something to write
        from tdcore.flusher.table import NameTable

        if self._names is None:
            self._names = NameTable(self._consumer)
        return Batch(drained, place, self._names)

    def _merger(self) -> Compactor | None:
        if self._compactor is None and len(self._ledger.entries) > 1:
            from tdcore.flusher.compactor import Compactor  # imports pyarrow

            self._compactor = Compactor(self._sink, self._ledger, self._options, self._clock)
        return self._compactor

    def _encode_empty(self, summary: IndexSummary) -> object:
        from tdcore.flusher.table import encode_empty

        return encode_empty(summary)
