"""Completeness: which of the rows that have come belong to steps of which nothing more will come.

A step's rows reach the index in pieces, and no row says "that was the last one"; rows of tensors on a device
may come after rows of later steps that were on the host. A step is complete for its worker when

- the worker has said that it is over, as a hook does when the next step begins (Index.whole_step);
- the attempt has ended on that worker; or
- nothing of the worker has come for `settle`. One that says when a step is over would have said so, and is
  given ten times as long: a slow step is not cut in two between forward and backward, and the last one before
  a very long pause is judged all the same.

Where a worker says nothing of steps (what wrote the run is no hook), its rows come in order: there a row of a
later step completes a step, too. Here each worker's steps have its own
numbers. Threads: belongs to one source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

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
        self._whole: dict[Place, int] = {}  # up to which step each has said that they are over

    def of(self, index: Index, waiting: Rows, fresh: Rows, ended: Collection[Place]) -> Mask:
        """Where waiting and then fresh rows are of complete steps. fresh: those that have just come."""
        rows, now = np.concatenate([waiting, fresh]), self._clock()
        texts = index.texts("worker")
        attempt, worker = (index.column(name)[rows].astype(np.int64) for name in ("attempt", "worker"))
        step = index.own_steps[rows]
        complete = np.zeros(len(rows), dtype=np.bool_)
        pairs = attempt * len(texts) + worker
        for pair in np.unique(pairs).tolist():
            mine = pairs == pair
            place = (pair // len(texts), texts[pair % len(texts)])
            if mine[len(waiting) :].any():
                self._arrived[place] = now
            whole = self._whole_step(index, place)
            silence = now - self._arrived[place]
            if place in ended or silence >= self._settle * (1 if whole is None else _PATIENCE):
                complete |= mine
            else:
                complete |= mine & (step < step[mine].max() if whole is None else step <= whole)
        return complete

    def position(self) -> dict[Place, int]:
        """What a later source of the same run should know."""
        return dict(self._whole)

    def resume(self, position: Mapping[Place, int]) -> None:
        """position: of another."""
        self._whole = dict(position)

    def _whole_step(self, index: Index, place: Place) -> int | None:
        known, told = self._whole.get(place), index.whole_step(place[1], place[0])
        if told is not None:
            self._whole[place] = told if known is None else max(known, told)
        return self._whole.get(place)
