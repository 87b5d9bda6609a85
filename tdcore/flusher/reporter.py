"""Reporter: reports of progress, errors and heartbeats to the trainer through the ring.

Threads: only the flusher's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdcore.flusher.index_summary import IndexSummary
from tdcore.flusher.ledger import Ledger
from tdcore.flusher.sink_rate import SinkRate

if TYPE_CHECKING:
    from tdcore._core import Consumer

__all__ = ["Reporter"]


class Reporter:
    """Reports that are sent through `consumer`.

    heartbeat: seconds between two heartbeats. rate: the totals of the sink.
    """

    def __init__(self, consumer: Consumer, ledger: Ledger, *, heartbeat: float, rate: SinkRate) -> None:
        self._consumer = consumer
        self._rate = rate
        self._ledger = ledger
        self._heartbeat = heartbeat
        self._next_heartbeat = 0.0
        self._trouble = ""  # as last reported
        self._highest_step = -1

    def heartbeat(self, now: float, trouble: str) -> None:
        """Send a heartbeat when it is due. trouble: why the sink keeps objects back; "" if it keeps none."""
        if now >= self._next_heartbeat:
            self.report_error(trouble if trouble != self._trouble else None)
            self._trouble = trouble
            self._next_heartbeat = now + self._heartbeat

    def report_error(self, error: str | None) -> None:
        """Report the current error: "" clears the last error, None keeps it."""
        busy_ns, uploads = self._rate.take()
        self._consumer.report(
            records=0,
            bytes=0,
            rows=0,
            last_step=self._last_step(),
            error=error,
            busy_ns=busy_ns,
            uploads=uploads,
        )

    def report_index_file(self, summary: IndexSummary, error: str | None) -> None:
        """Report an index file that is durable. error: as for report_error()."""
        busy_ns, uploads = self._rate.take()
        self._consumer.report(
            records=summary.records,
            bytes=summary.payload_bytes,
            rows=summary.rows,
            last_step=self._last_step(),
            error=error,
            busy_ns=busy_ns,
            uploads=uploads,
        )

    def _last_step(self) -> int:
        """The highest step so far. A later file may have only rows of earlier steps, or no rows."""
        newest = self._ledger.entries[-1].summary if self._ledger.entries else None
        if newest is not None:
            self._highest_step = max(self._highest_step, newest.last_step)
        return self._highest_step
