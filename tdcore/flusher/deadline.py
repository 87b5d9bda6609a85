"""Deadline: how long a flusher continues after the trainer has ended while nothing can be written.

Threads: the flusher's only.
"""

from __future__ import annotations

__all__ = ["Deadline"]


class Deadline:
    """`patience` seconds from the end of the trainer, or from the last success since then."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._ending_since: float | None = None
        self._last_success = 0.0
        self._kept_back = 0  # objects, at the last call

    def start(self, now: float) -> None:
        """Start the deadline at the end of the trainer. Later calls have no effect."""
        if self._ending_since is None:
            self._ending_since = now

    def record_success(self, now: float) -> None:
        """Something was written."""
        self._last_success = now

    def set_kept_back(self, objects: int, now: float) -> None:
        """Set how many objects the sink keeps back. Fewer than at the last call count as a success."""
        if objects < self._kept_back:
            self.record_success(now)
        self._kept_back = objects

    def expired(self, now: float, patience: float | None = None) -> bool:
        """Whether the time is over. patience: a shorter one than usual."""
        limit = self._patience if patience is None else min(patience, self._patience)
        return now - max(self._ending_since or now, self._last_success) >= limit
