"""SinkRate: the time in which the sink writes records. Threads: only the flusher's thread."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["SinkRate"]


class SinkRate:
    """Clock that runs while records are written, also while several writes of a bucket are in progress.

    The trainer divides the written bytes by this time (hooks/sink_load.py). clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None  # None while nothing is written
        self._seconds = 0.0

    def set_busy(self, busy: bool) -> None:
        """Set whether records are being written, and count the time since the last call if they were."""
        now = self._clock()
        if self._since is not None:
            self._seconds += now - self._since
        self._since = now if busy else None

    def take_ns(self) -> int:
        """Nanoseconds since the last call of this method in which records were written."""
        self.set_busy(self._since is not None)
        taken, self._seconds = int(self._seconds * 1e9), 0.0
        return taken
