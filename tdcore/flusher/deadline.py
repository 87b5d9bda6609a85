"""Deadline: the time for which a flusher continues after the end of the trainer while writes fail.

Threads: only the flusher's thread.
"""

from __future__ import annotations

__all__ = ["Deadline"]


class Deadline:
    """`patience` seconds from the end of the trainer, or from the last success since then."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._ending_since: float | None = None
        self._last_success = 0.0
        self._kept_back = 0  # number of objects at the last call

    def start(self, now: float) -> None:
        """Start the deadline at the end of the trainer. Later calls have no effect."""
        if self._ending_since is None:
            self._ending_since = now

    def record_success(self, now: float) -> None:
        """Record that an object was written."""
        self._last_success = now

    def set_kept_back(self, objects: int, now: float) -> None:
        """Set how many objects the sink keeps back. A decrease since the last call counts as a success."""
        if objects < self._kept_back:
            self.record_success(now)
        self._kept_back = objects

    def expired(self, now: float, patience: float | None = None) -> bool:
        """Whether the deadline has passed. patience: a shorter time than usual."""
        limit = self._patience if patience is None else min(patience, self._patience)
        return now - max(self._ending_since or now, self._last_success) >= limit
