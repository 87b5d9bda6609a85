"""How long a flusher goes on after the trainer has ended, while nothing moves. One thread: the flusher's."""

from __future__ import annotations

__all__ = ["Deadline"]


class Deadline:
    """`patience` seconds from the trainer's end, or from the last thing that was done since."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._ending_since: float | None = None
        self._last_success = 0.0
        self._left = 0  # objects kept back, as last seen

    def ending(self, now: float) -> None:
        """The trainer has ended. The first call counts."""
        if self._ending_since is None:
            self._ending_since = now

    def moved(self, now: float) -> None:
        """Something was done."""
        self._last_success = now

    def left(self, objects: int, now: float) -> None:
        """So many objects are kept back now; fewer than before is something done."""
        if objects < self._left:
            self.moved(now)
        self._left = objects

    def passed(self, now: float, patience: float | None = None) -> bool:
        """Whether time is out. patience: where it is less than usual."""
        limit = self._patience if patience is None else min(patience, self._patience)
        return now - max(self._ending_since or now, self._last_success) >= limit
