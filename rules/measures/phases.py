"""Phases: the losses of each TRAIN or EVAL phase of a training that alternates between the two modes.

Within a phase the global step and the step of its mode advance together, so the mode and the difference of
the two steps identify the phase. Plain values; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tdcore.rules.columns import Mask
from tdcore.rules.measures.series import Points

__all__ = ["Phase", "PhaseCutter", "as_points"]


@dataclass(slots=True, kw_only=True)
class Phase:
    """The losses of one phase. Sums grow value by value, so they do not depend on the boundaries of windows.

    Attributes:
        step, mode_step: Global step and step of the mode of the last saved value.
        first: First value.
        total, squares: Sums of (value - first), and of its squares.
    """

    is_eval: bool
    offset: int  # the worker's own global step - mode_step
    first: float
    step: int = 0
    mode_step: int = 0
    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return self.first + self.total / self.count

    @property
    def standard_error(self) -> float:
        """Standard error of the mean, from the variance of the values; 0.0 for a single value."""
        if self.count < 2:
            return 0.0
        variance = max(0.0, self.squares - self.total**2 / self.count) / (self.count - 1)
        return float(np.sqrt(variance / self.count))

    def take(self, points: Points, rows: slice) -> None:
        """Add values of this phase."""
        values = points.value[rows] - self.first
        self.total = float(np.cumsum(np.append(self.total, values))[-1])
        self.squares = float(np.cumsum(np.append(self.squares, values**2))[-1])
        self.count += values.size
        self.step, self.mode_step = int(points.step[rows][-1]), int(points.mode_step[rows][-1])


@dataclass(slots=True, kw_only=True)
class PhaseCutter:
    """Splits a growing series into phases, and stores the phase that has not ended."""

    open: Phase | None = None
    newest: int = -1  # global step of the last value, in the worker's own numbers

    def take(self, points: Points, is_eval: Mask) -> list[Phase]:
        """Add points, and return the phases that ended: a phase ends when another phase begins.

        A late point, for a step that is not after the newest step, is ignored.
        """
        late = int(np.searchsorted(points.own_step, self.newest, side="right"))
        points, is_eval = points.after(int(points.unit[late - 1])) if late else points, is_eval[late:]
        if not points.own_step.size:
            return []
        self.newest = int(points.own_step[-1])
        ended: list[Phase] = []
        for rows in _cuts(points.own_step - points.mode_step, is_eval):
            offset = int(points.own_step[rows.start] - points.mode_step[rows.start])
            kind = bool(is_eval[rows.start])
            if self.open is None or (self.open.offset, self.open.is_eval) != (offset, kind):
                ended += self.end()
                self.open = Phase(is_eval=kind, offset=offset, first=float(points.value[rows.start]))
            self.open.take(points, rows)
        return ended

    def end(self) -> list[Phase]:
        """End the open phase and return it; an empty list if no phase is open."""
        ended, self.open = self.open, None
        return [] if ended is None else [ended]


def as_points(phases: list[Phase]) -> Points:
    """One point per phase: its mean, at its last step; the unit is the step of the mode."""
    unit = np.array([phase.mode_step for phase in phases], dtype=np.int64)
    step = np.array([phase.step for phase in phases], dtype=np.int64)
    value = np.array([phase.mean for phase in phases])
    return Points(unit=unit, step=step, own_step=step, mode_step=unit, value=value)


def _cuts(offset: npt.NDArray[np.int64], is_eval: Mask) -> list[slice]:
    """Slices of the rows of each phase."""
    changes = (np.diff(offset) != 0) | (np.diff(is_eval.astype(np.int8)) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), offset.size]
    return [slice(begin, end) for begin, end in pairwise(bounds)]
