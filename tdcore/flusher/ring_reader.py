"""RingReader: reader of batches of records from the ring, whose memory is released in the same order.

Threads: only the flusher's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tdcore.format.layout import FileRange

if TYPE_CHECKING:
    from tdcore._core import Consumer
    from tdcore.flusher.flush_batch import FlushBatch
    from tdcore.flusher.index_table import RingNameTable
    from tdcore.flusher.lost_tensors import LostTensors

__all__ = ["RingReader"]

_MANY_BYTES = 1 << 62
_FILLING_SHARE = 8  # the ring is polled often if it has this share of a batch

Documents = list[tuple[str, bytes]]


class RingReader:
    """The batches of `worker` in `attempt`, of at most segment_bytes and at most 1/`share` of the ring.

    documents: called with the documents from the ring, in order.
    """

    def __init__(
        self,
        consumer: Consumer,
        *,
        worker: str,
        attempt: int,
        segment_bytes: int,
        share: int,
        documents: Callable[[Documents], None],
        run_id: str = "",
    ) -> None:
        self._run_id = run_id
        self.batches: deque[FlushBatch] = deque()  # taken and not released, oldest first
        self.trainer_dead = False  # incomplete records will never be completed
        self._consumer = consumer
        self._worker = worker
        self._attempt = attempt
        self._segment_bytes = segment_bytes
        self._share = share
        self._max_records = consumer.slots // share
        self._documents = documents
        self._names: RingNameTable | None = None  # created for the first batch, because it imports pyarrow
        self._lost: LostTensors | None = None  # likewise
        self._next_ticket = 0  # first ticket of the next index file
        self._repeated: deque[FileRange] = deque()  # files that an earlier flusher had begun

    def resume(self, covered: int) -> bool:
        """Continue after ticket `covered`, the last one in an index file, and release all records up to it.

        Returns False if some of these records are not complete yet; the caller must then call again.
        """
        self._next_ticket = covered + 1
        while (ahead := self._next_ticket - self._consumer.head_ticket) > 0:
            drained = self._consumer.drain(_MANY_BYTES, ahead, self.trainer_dead)
            if drained.end_ticket == drained.first_ticket:
                return False
            self._documents(drained.documents)
            self._consumer.release(drained)
        return True

    def skip_lost(self) -> FileRange | None:
        """Tickets that an earlier flusher released without an index file, which are lost; or None."""
        first, head = self._next_ticket, self._consumer.head_ticket
        if head <= first:
            return None
        self._next_ticket = head
        return FileRange(self._worker, self._attempt, first, head - 1)

    def repeat(self, begun: Iterable[FileRange]) -> None:
        """Make the next batches equal to these files, so that they are written again with the same names."""
        self._repeated = deque(place for place in begun if place.first >= self._next_ticket)

    def take(self) -> FlushBatch | None:
        """The next batch; None if its oldest record is not complete yet."""
        size, records = self._max_bytes, self._max_records
        if self._repeated:
            size, records = _MANY_BYTES, self._repeated[0].last + 1 - self._next_ticket
        drained = self._consumer.drain(size, records, self.trainer_dead)
        if drained.end_ticket == drained.first_ticket:
            return None
        self._documents(drained.documents)
        place = FileRange(self._worker, self._attempt, self._next_ticket, drained.end_ticket - 1)
        self._next_ticket = drained.end_ticket
        while self._repeated and self._repeated[0].last < self._next_ticket:
            self._repeated.popleft()

        from tdcore.flusher.flush_batch import (
            FlushBatch,  # imports pyarrow, so imported for the first batch
        )
        from tdcore.flusher.index_table import RingNameTable
        from tdcore.flusher.lost_tensors import LostTensors

        if self._names is None or self._lost is None:
            self._names, self._lost = RingNameTable(self._consumer), LostTensors()
        batch = FlushBatch(drained, place, self._names, self._lost, self._run_id)
        self.batches.append(batch)
        return batch

    def release_oldest(self) -> None:
        """Release the memory of the oldest batch."""
        self._consumer.release(self.batches.popleft().drained)

    def unread(self) -> tuple[int, int]:
        """Records and bytes in the ring that are in no batch."""
        taken = self._next_ticket - self._consumer.head_ticket
        taken_bytes = sum(batch.drained.payload_bytes for batch in self.batches)
        return self._consumer.pending_records - taken, self._consumer.pending_bytes - taken_bytes

    @property
    def _max_bytes(self) -> int:
        """Maximum size of one batch. The ring may be smaller than configured if memory is short."""
        return min(self._segment_bytes, self._consumer.data_bytes // self._share)

    @property
    def full(self) -> bool:
        """Whether the ring has enough records for a full batch."""
        records, size = self.unread()
        return size >= self._max_bytes or records >= self._max_records

    @property
    def filling(self) -> bool:
        """Whether the ring will have enough records for a full batch soon."""
        records, size = self.unread()
        return size * _FILLING_SHARE >= self._max_bytes or records * _FILLING_SHARE >= self._max_records
