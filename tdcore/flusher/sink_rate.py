"""SinkRate: the time in which the sink has work, and the bytes that a bucket has accepted.

The trainer compares these totals with the requested data (hooks/sink_load.py). Threads: only the flusher's
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tdcore.flusher.pipeline import Pipeline

__all__ = ["SinkRate"]


class SinkRate:
    """Totals of `pipeline` since the last report. clock: monotonic seconds.

    The clock runs while objects are written, also while several writes of a bucket are in progress, and while
    objects wait in the spool.
    """

    def __init__(self, pipeline: Pipeline, clock: Callable[[], float]) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._since: float | None = None  # None while the sink has no work
        self._seconds = 0.0
        self._uploads = (0, 0, 0)  # as last taken

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Count the time of the block as time with work."""
        self._set_busy(True)
        try:
            yield
        finally:
            self.update()

    def update(self) -> None:
        """Count the time until now, and continue only if the sink still has work."""
        self._set_busy(self._pipeline.busy or self._pipeline.kept_back > 0)

    def take(self) -> tuple[int, tuple[int, int, int]]:
        """Nanoseconds with work, and the PipelinedSink.upload_totals, since the last call."""
        self._set_busy(self._since is not None)
        taken, self._seconds = int(self._seconds * 1e9), 0.0
        before, self._uploads = self._uploads, self._pipeline.upload_totals()
        durable, accepted, upload_ns = (
            max(0, now - last) for now, last in zip(self._uploads, before, strict=True)
        )
        return taken, (durable, accepted, upload_ns)

    def _set_busy(self, busy: bool) -> None:
        now = self._clock()
        if self._since is not None:
            self._seconds += now - self._since
        self._since = now if busy else None
