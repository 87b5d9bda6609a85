"""Completeness: decides which rows belong to complete steps, that is, steps that will get no more rows.

The rows of a step reach the index in several parts, and no row is marked as the last. Rows of tensors on a
device may arrive after rows of later steps that were on the host. A step is complete for its worker when

- the worker has recorded the end of the step, as a hook does when the next step begins (Index.whole_step);
- the attempt has ended on that worker; or
- no row of the worker has arrived for `settle` seconds. For a worker that records the ends of its steps the
  limit is ten times longer. So a slow step is not split between forward and backward pass, and the last step
  before a very long pause is still judged.

A run that was not written by a hook has no recorded ends of steps. The rows of its workers arrive in order,
so a row of a later step also completes a step. In this file, the steps of each worker have the worker's own
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

_PATIENCE = 10  # times `settle`, for workers that record the ends of their steps

WorkerAttempt = tuple[int, str]  # attempt and worker
Mask = npt.NDArray[np.bool_]
Stretches = npt.NDArray[np.int64]


class Completeness:
    """Finds the rows of complete steps.

    Args:
        settle: Seconds without new rows after which a step counts as complete; see the module's docstring.
        clock: Monotonic seconds.
    """

    def __init__(self, settle: float, clock: Callable[[], float]) -> None:
        self._settle = settle
        self._clock = clock
        self._arrived: dict[WorkerAttempt, float] = {}  # arrival of the last rows
        self._whole: dict[WorkerAttempt, int] = {}  # last step whose end was recorded

    def of(
        self, index: Index, waiting: Stretches, fresh: Stretches, ended: Collection[WorkerAttempt]
    ) -> Mask:
        """Mask of the stretches of complete steps: first the `waiting` ones, then the `fresh` ones.

        Args:
            index: The index of the run. Its stretches are sequences of rows of one worker and step.
            waiting: Stretches of steps that were incomplete at the last call.
            fresh: Stretches that arrived since the last call.
            ended: Workers and attempts that write no further rows.
        """
        read, now = np.concatenate([waiting, fresh]), self._clock()
        texts, stretches = index.texts("worker"), index.stretches
        attempt, worker = (stretches.column(name)[read].astype(np.int64) for name in ("attempt", "worker"))
        step = stretches.own_steps[read]
        complete = np.zeros(len(read), dtype=np.bool_)
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

    def position(self) -> dict[WorkerAttempt, int]:
        """State that a later source of the same run needs; see `resume`."""
        return dict(self._whole)

    def resume(self, position: Mapping[WorkerAttempt, int]) -> None:
        """Replace the position by the `position` of another object."""
        self._whole = dict(position)

    def _whole_step(self, index: Index, place: WorkerAttempt) -> int | None:
        known, told = self._whole.get(place), index.whole_step(place[1], place[0])
        if told is not None:
            self._whole[place] = told if known is None else max(known, told)
        return self._whole.get(place)
