"""Intake: takes records out of the ring as batches, and gives their space back in the same order.

One thread: the flusher's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tdcore.format.layout import FileRange

if TYPE_CHECKING:
    from tdcore._core import Consumer
    from tdcore.flusher.batch import Batch
    from tdcore.flusher.lost import LostTensors
    from tdcore.flusher.table import NameTable

__all__ = ["Intake"]

_MANY_BYTES = 1 << 62
_SOON = 8  # from this part of a batch on, the next one is looked for often

Documents = list[tuple[str, bytes]]


class Intake:
    """The batches of `worker` in `attempt`; each holds at most segment_bytes and a `share`-th of the ring.

    documents: called with the small files that come out of the ring, in order.
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
        self.batches: deque[Batch] = deque()  # taken and not given back, oldest first
        self.dead = False  # the trainer has died: incomplete records will stay so
        self._consumer = consumer
        self._worker = worker
        self._attempt = attempt
        self._segment_bytes = segment_bytes
        self._share = share
        self._max_records = consumer.slots // share
        self._documents = documents
        self._names: NameTable | None = None  # made with the first batch: it imports pyarrow
        self._lost: LostTensors | None = None  # likewise
        self._next_ticket = 0  # where the next index file begins
        self._redo: deque[FileRange] = deque()  # files that a flusher before this one had begun

    def resume(self, covered: int) -> bool:
        """Go on behind ticket `covered`, the last that is in an index file: give back what the ring still has
        of those before it. False when that is not all there yet; call again then."""
        self._next_ticket = covered + 1
        while (ahead := self._next_ticket - self._consumer.head_ticket) > 0:
            drained = self._consumer.drain(_MANY_BYTES, ahead, self.dead)
            if drained.end_ticket == drained.first_ticket:
                return False
            self._documents(drained.documents)
            self._consumer.release(drained)
        return True

    def skip_lost(self) -> FileRange | None:
        """The tickets that were given back but are in no index file: they died with an earlier flusher."""
        first, head = self._next_ticket, self._consumer.head_ticket
        if head <= first:
            return None
        self._next_ticket = head
        return FileRange(self._worker, self._attempt, first, head - 1)

    def repeat(self, begun: Iterable[FileRange]) -> None:
        """Cut the next batches like these files, so that they are written once more under the same names."""
        self._redo = deque(place for place in begun if place.first >= self._next_ticket)

    def take(self) -> Batch | None:
        """The next batch, None when its oldest record is not complete yet."""
        size, records = self._max_bytes, self._max_records
        if self._redo:
            size, records = _MANY_BYTES, self._redo[0].last + 1 - self._next_ticket
        drained = self._consumer.drain(size, records, self.dead)
        if drained.end_ticket == drained.first_ticket:
            return None
        self._documents(drained.documents)
        place = FileRange(self._worker, self._attempt, self._next_ticket, drained.end_ticket - 1)
        self._next_ticket = drained.end_ticket
        while self._redo and self._redo[0].last < self._next_ticket:
            self._redo.popleft()

        from tdcore.flusher.batch import Batch  # imports pyarrow, so not before there is something to write
        from tdcore.flusher.lost import LostTensors
        from tdcore.flusher.table import NameTable

        if self._names is None or self._lost is None:
            self._names, self._lost = NameTable(self._consumer), LostTensors()
        batch = Batch(drained, place, self._names, self._lost, self._run_id)
        self.batches.append(batch)
        return batch

    def give_back(self) -> None:
        """The oldest batch is done with."""
        self._consumer.release(self.batches.popleft().drained)

    def waiting(self) -> tuple[int, int]:
        """Records and bytes in the ring that no batch has."""
        taken = self._next_ticket - self._consumer.head_ticket
        taken_bytes = sum(batch.drained.payload_bytes for batch in self.batches)
        return self._consumer.pending_records - taken, self._consumer.pending_bytes - taken_bytes

    @property
    def _max_bytes(self) -> int:
        """Of one batch. A ring that gets no more memory is smaller than it might be."""
        return min(self._segment_bytes, self._consumer.data_bytes // self._share)

    @property
    def full(self) -> bool:
        """Whether a whole batch waits."""
        records, size = self.waiting()
        return size >= self._max_bytes or records >= self._max_records

    @property
    def filling(self) -> bool:
        """Whether a whole batch will wait soon."""
        records, size = self.waiting()
        return size * _SOON >= self._max_bytes or records * _SOON >= self._max_records
