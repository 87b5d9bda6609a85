"""Whether the sink works, when to try it again, and what to tell the user: one message, not one per attempt.

One thread: the flusher's.
"""

from __future__ import annotations

import sys

__all__ = ["Health"]


class Health:
    """State of the sink as the flusher sees it. Times are the flusher's clock, in seconds."""

    def __init__(self, *, retry_delay: float, where: str) -> None:
        self._retry_delay = retry_delay
        self._where = where
        self._retry_at = 0.0
        self._told = False
        self.failing = False
        self.since: float | None = None  # when the present trouble began
        self.message = ""
        self.full = False  # whether the sink has no space

    def waiting(self, now: float) -> bool:
        """Whether the sink refused a moment ago and should be left alone."""
        return self.failing and now < self._retry_at

    def refused(self, error: Exception, now: float) -> bool:
        """The sink refused. True when this is news, to be reported."""
        self._retry_at = now + self._retry_delay
        news = not self.failing or self.message != str(error)
        if not self.failing:
            self.failing, self.since = True, now
        self.message = str(error)
        self.full = getattr(error, "kind", "") == "full"
        if not self._told:
            self._told = True
            say(f"{self._where}: {error}. The training goes on; what cannot be kept is recorded.")
        return news

    def worked(self) -> bool:
        """The sink took something. True when that ends a time of trouble."""
        was, self.failing, self.since, self.message = self.failing, False, None, ""
        self.full = False
        return was


def say(message: str) -> None:
    """One line for the user. Never raises: stderr may be closed or full."""
    try:
        print(f"tdcore flusher: {message}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return
