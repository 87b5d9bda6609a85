"""What the flusher tells the trainer through the ring: progress, trouble, that it is alive.

One thread: the flusher's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdcore.flusher.ledger import Ledger
from tdcore.flusher.summary import IndexSummary

if TYPE_CHECKING:
    from tdcore._core import Consumer

__all__ = ["Reporter"]


class Reporter:
    """Reports through `consumer`. heartbeat: seconds between two signs of life."""

    def __init__(self, consumer: Consumer, ledger: Ledger, *, heartbeat: float) -> None:
        self._consumer = consumer
        self._ledger = ledger
        self._heartbeat = heartbeat
        self._beat_at = 0.0
        self._trouble = ""  # as last told
        self._highest_step = -1

    def beat(self, now: float, trouble: str) -> None:
        """A sign of life, when it is time. trouble: why data is kept back, "" when it is not."""
        if now >= self._beat_at:
            self.tell(trouble if trouble != self._trouble else None)
            self._trouble = trouble
            self._beat_at = now + self._heartbeat

    def tell(self, error: str | None) -> None:
        """What is wrong; "" for nothing any more, None for nothing new."""
        self._consumer.report(records=0, bytes=0, rows=0, last_step=self._last_step(), error=error)

    def entered(self, summary: IndexSummary, error: str | None) -> None:
        """An index file with this summary is durable. error: as for tell()."""
        self._consumer.report(
            records=summary.records,
            bytes=summary.payload_bytes,
            rows=summary.rows,
            last_step=self._last_step(),
            error=error,
        )

    def _last_step(self) -> int:
        """The highest step so far: a later file may hold rows of an earlier step, or none."""
        newest = self._ledger.entries[-1].summary if self._ledger.entries else None
        if newest is not None:
            self._highest_step = max(self._highest_step, newest.last_step)
        return self._highest_step
