"""Series: the values of one tensor over the steps, from the rows of a window.

Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.columns import Columns, Mask
from tdcore.rules.measures.group_codes import NUMBERS, dense, group_codes
from tdcore.rules.window import Window

__all__ = ["NO_POINTS", "Points", "dense", "group_codes", "groups", "mixed_series", "scalars", "series"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Points:
    """Values of one loss in one mode, ascending: one value per unit.

    Attributes:
        unit: Step of the mode. For several modes together: `own_step`, the global step in the worker's own
            numbers.
        step: Global step of the first worker by rank.
    """

    unit: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    own_step: npt.NDArray[np.int64]
    mode_step: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]

    def after(self, unit: int) -> Points:
        """The points whose unit is above `unit`."""
        start = int(np.searchsorted(self.unit, unit, side="right"))
        return Points(
            unit=self.unit[start:],
            step=self.step[start:],
            own_step=self.own_step[start:],
            mode_step=self.mode_step[start:],
            value=self.value[start:],
        )

    def at(self, positions: npt.NDArray[np.int64]) -> Points:
        """The points at these positions."""
        return Points(
            unit=self.unit[positions],
            step=self.step[positions],
            own_step=self.own_step[positions],
            mode_step=self.mode_step[positions],
            value=self.value[positions],
        )

    def joined(self, later: Points) -> Points:
        """These points, followed by the later points."""
        return Points(
            unit=np.concatenate([self.unit, later.unit]),
            step=np.concatenate([self.step, later.step]),
            own_step=np.concatenate([self.own_step, later.own_step]),
            mode_step=np.concatenate([self.mode_step, later.mode_step]),
            value=np.concatenate([self.value, later.value]),
        )


_NONE = np.empty(0, dtype=np.int64)
NO_POINTS = Points(unit=_NONE, step=_NONE, own_step=_NONE, mode_step=_NONE, value=np.empty(0))


def scalars(window: Window, wanted: Mask, what: str = "loss") -> Mask:
    """The wanted rows that hold one finite number. The other rows are counted as missing, with the reason.

    A loss with a value for each sample, whose mean is among the wanted rows, is not missing (hooks/mxnet).

    what: word for these tensors in the reasons.
    """
    wanted = wanted & window.ok
    window.missing(f"{what} saved without statistics", int(np.sum(wanted & ~window.counted)))
    wanted = wanted & window.counted
    scalar = window.columns.ints("count") == 1
    several = wanted & ~scalar
    if several.any():
        several &= ~_with_mean(window, wanted & scalar, several)
    window.missing(f"{what} is not a scalar", int(np.sum(several)))
    finite = window.finite == 1
    window.missing(f"{what} is not finite", int(np.sum(wanted & scalar & ~finite)))
    found: Mask = wanted & scalar & finite
    return found


def _with_mean(window: Window, means: Mask, rows: Mask) -> Mask:
    """The `rows` of "<loss>_output_<n>" where "<loss>_mean" belongs to `means` of the same worker."""
    columns, found = window.columns, np.zeros(len(window), dtype=np.bool_)
    places = ("attempt", "worker", "name")
    saved = {tuple(place) for *place, _ in groups(columns, np.flatnonzero(means), *places)}
    for attempt, worker, name, group in groups(columns, np.flatnonzero(rows), *places):
        loss, separator, _ = name.rpartition("_output_")
        found[group] = bool(separator) and (attempt, worker, f"{loss}_mean") in saved
    return found


def series(
    window: Window, rows: npt.NDArray[np.int64], merge: bool
) -> Iterator[tuple[tuple[int, str, str, str], Points]]:
    """The losses among `rows`, by (attempt, worker, name, mode). merge: use one mode, "GLOBAL", for all."""
    columns = window.columns
    keys = ("attempt", "worker", "name") if merge else ("attempt", "worker", "name", "mode")
    for *key, group in groups(columns, rows, *keys):
        attempt, worker, name, *rest = key
        mode = "GLOBAL" if merge else rest[0]
        points, _ = _points(columns, group, by_step=mode == "GLOBAL")
        yield (attempt, worker, name, mode), points


def mixed_series(
    window: Window, rows: npt.NDArray[np.int64]
) -> Iterator[tuple[tuple[int, str, str], Points, Mask]]:
    """The losses among `rows`, of TRAIN and EVAL together, by (attempt, worker, name), in order of steps.

    The mask selects the points of EVAL mode.
    """
    columns = window.columns
    is_eval = columns.where("mode", lambda mode: mode == "EVAL")
    for attempt, worker, name, group in groups(columns, rows, "attempt", "worker", "name"):
        points, last = _points(columns, group, by_step=True)
        yield (attempt, worker, name), points, is_eval[group][last]


def _points(
    columns: Columns, group: npt.NDArray[np.int64], by_step: bool
) -> tuple[Points, npt.NDArray[np.int64]]:
    """The rows as points, one per unit, and the position in `group` of the last row of each unit."""
    step, mode_step = columns.ints("step")[group], columns.ints("mode_step")[group]
    own_step = columns.own_steps[group]
    unit = own_step if by_step else mode_step
    value = columns.floats("mean")[group]
    if np.all(unit[1:] > unit[:-1]):
        points = Points(unit=unit, step=step, own_step=own_step, mode_step=mode_step, value=value)
        return points, np.arange(unit.size)
    distinct, inverse, counts = np.unique(unit, return_inverse=True, return_counts=True)
    value = np.bincount(inverse, weights=value) / counts
    last = np.zeros(distinct.size, dtype=np.int64)
    last[inverse] = np.arange(unit.size)
    points = Points(
        unit=distinct, step=step[last], own_step=own_step[last], mode_step=mode_step[last], value=value
    )
    return points, last


def groups(columns: Columns, rows: npt.NDArray[np.int64], *names: str) -> Iterator[tuple[Any, ...]]:
    """(value of each named column, rows) for each combination that occurs, rows in their order."""
    if not rows.size:
        return
    code = group_codes(columns, rows, *names)
    starts = np.zeros(1, dtype=np.int64)
    if code.min() != code.max():
        order = np.argsort(code, kind="stable")
        rows, code = rows[order], code[order]
        starts = np.append(starts, np.flatnonzero(np.diff(code)) + 1)
    first, bounds = rows[starts], [*starts.tolist(), rows.size]
    keys = [_keys(columns, name, first) for name in names]
    for at, key in enumerate(zip(*keys, strict=True)):
        yield (*key, rows[bounds[at] : bounds[at + 1]])


def _keys(columns: Columns, name: str, rows: npt.NDArray[np.int64]) -> list[Any]:
    """The values of a column at these rows; null becomes 0 or ""."""
    if name in NUMBERS:
        return list(columns.ints(name)[rows].tolist())
    codes, texts = columns.codes(name)
    return [texts[code] or "" for code in codes[rows].tolist()]
