"""Completeness: which of the rows that have come belong to steps of which nothing more will come.

A step's rows reach the index in pieces, and no row says "that was the last one". A step is complete for its
worker when

- a row of a later step of that worker is there;
- a ticket without rows is there behind its rows: a hook takes one when the next step begins, and tickets of a
  worker are consecutive and read in order;
- the attempt has ended on that worker; or
- nothing was added to it for `settle`. A worker that takes tickets without rows would have taken one if the
  step were over, so it is given ten times as long: a slow step is not cut in two between forward and
  backward, and the last one before a very long pause is judged all the same.

Payloads that were given up with their rows leave tickets without rows, too: a step may then count as complete
early. Threads: belongs to one source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tdcore.trial.index import Index

__all__ = ["Completeness"]

_PATIENCE = 10  # times `settle`, for workers that say when a step is over

Place = tuple[int, str]  # attempt and worker
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]


class Completeness:
    """settle: seconds, see the module's text. clock: monotonic seconds."""

    def __init__(self, settle: float, clock: Callable[[], float]) -> None:
        self._settle = settle
        self._clock = clock
        self._arrived: dict[Place, float] = {}  # when the last rows of each came
        self._next: dict[Place, int] = {}  # the ticket that follows those of its rows
        self._telling: set[Place] = set()  # those that have taken a ticket without rows

    def of(self, index: Index, waiting: Rows, fresh: Rows, ended: Collection[Place]) -> Mask:
        """Where waiting and then fresh rows are of complete steps. fresh: those that have just come."""
        rows, now = np.concatenate([waiting, fresh]), self._clock()
        texts = index.texts("worker")
        attempt, worker, step, ticket = (
            index.column(name)[rows].astype(np.int64) for name in ("attempt", "worker", "step", "ticket")
        )
        complete = np.zeros(len(rows), dtype=np.bool_)
        pairs = attempt * len(texts) + worker
        for pair in np.unique(pairs).tolist():
            mine = pairs == pair
            place = (pair // len(texts), texts[pair % len(texts)])
            come = ticket[len(waiting) :][mine[len(waiting) :]]
            over = index.end(place[1], place[0]) > int(ticket[mine].max()) + 1
            if come.size:
                self._arrived[place] = now
                self._follow(place, come)
            if over:
                self._telling.add(place)
            if over or place in ended or now - self._arrived[place] >= self._patience(place):
                complete |= mine
            else:
                complete |= mine & (step < step[mine].max())
        return complete

    def position(self) -> list[Place]:
        """What a later source of the same run should know."""
        return sorted(self._telling)

    def resume(self, position: Collection[Place], read: dict[tuple[str, int], int]) -> None:
        """position: of another. read: how many tickets of each worker and attempt it had read."""
        self._telling = set(position)
        self._next = {(attempt, worker): end for (worker, attempt), end in read.items()}

    def _follow(self, place: Place, come: npt.NDArray[Any]) -> None:
        """Notes whether there are tickets without rows before or between these."""
        tickets = np.unique(come)
        first, last = int(tickets[0]), int(tickets[-1])
        if first > self._next.get(place, 0) or last - first >= len(tickets):
            self._telling.add(place)
        self._next[place] = last + 1

    def _patience(self, place: Place) -> float:
        return self._settle * _PATIENCE if place in self._telling else self._settle
