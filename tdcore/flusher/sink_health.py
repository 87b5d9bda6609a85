"""SinkHealth: whether the sink accepts writes, and when to retry. Threads: only the flusher's thread."""

from __future__ import annotations

from tdcore.flusher.messages import print_message

__all__ = ["SinkHealth"]


class SinkHealth:
    """State of the sink after the last write. Times are in seconds of the flusher's clock.

    retry_delay: pause after a failure. where: name of the worker, for messages.
    """

    def __init__(self, *, retry_delay: float, where: str) -> None:
        self._retry_delay = retry_delay
        self._where = where
        self._retry_at = 0.0
        self._printed = False
        self.failing = False
        self.since: float | None = None  # when the current failure began
        self.message = ""
        self.full = False  # whether the sink has no space left

    def in_retry_delay(self, now: float) -> bool:
        """Whether the last write failed so recently that the sink is not tried now."""
        return self.failing and now < self._retry_at

    def record_failure(self, error: Exception, now: float) -> bool:
        """Record a failed write, and print a message for the first one. Return whether the error is new."""
        self._retry_at = now + self._retry_delay
        new = not self.failing or self.message != str(error)
        if not self.failing:
            self.failing, self.since = True, now
        self.message = str(error)
        self.full = getattr(error, "kind", "") == "full"
        if not self._printed:
            self._printed = True
            print_message(
                f"{self._where}: {error}. The training continues; data that cannot be kept is counted."
            )
        return new

    def record_success(self) -> bool:
        """Record a successful write. Return whether the write before it failed."""
        was, self.failing, self.since, self.message = self.failing, False, None, ""
        self.full = False
        return was
