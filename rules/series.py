"""Series: the values of one tensor over steps, out of the rows of a window. For rules that follow something.

Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.window import Columns, Window

__all__ = ["NO_POINTS", "Points", "groups", "series"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Points:
    """Values of one loss in one mode, ascending: unit = step of the mode (or global), one value each."""

    unit: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    mode_step: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]

    def after(self, unit: int) -> Points:
        """Those whose unit is above `unit`."""
        start = int(np.searchsorted(self.unit, unit, side="right"))
        return Points(
            unit=self.unit[start:],
            step=self.step[start:],
            mode_step=self.mode_step[start:],
            value=self.value[start:],
        )

    def joined(self, later: Points) -> Points:
        """These, then the later ones."""
        return Points(
            unit=np.concatenate([self.unit, later.unit]),
            step=np.concatenate([self.step, later.step]),
            mode_step=np.concatenate([self.mode_step, later.mode_step]),
            value=np.concatenate([self.value, later.value]),
        )


_NONE = np.empty(0, dtype=np.int64)
NO_POINTS = Points(unit=_NONE, step=_NONE, mode_step=_NONE, value=np.empty(0))


def series(
    window: Window, rows: npt.NDArray[np.int64], merge: bool
) -> Iterator[tuple[tuple[int, str, str, str], Points]]:
    """The losses among `rows`, by (attempt, worker, name, mode); merge puts all modes into one, "GLOBAL"."""
    columns = window.columns
    keys = ("attempt", "worker", "name") if merge else ("attempt", "worker", "name", "mode")
    for *key, group in groups(columns, rows, *keys):
        attempt, worker, name, *rest = key
        mode = "GLOBAL" if merge else rest[0]
        step, mode_step = columns.ints("step")[group], columns.ints("mode_step")[group]
        unit = step if mode == "GLOBAL" else mode_step
        distinct, inverse, counts = np.unique(unit, return_inverse=True, return_counts=True)
        value = np.bincount(inverse, weights=columns.floats("mean")[group]) / counts
        last = np.zeros(distinct.size, dtype=np.int64)
        last[inverse] = np.arange(unit.size)
        yield (
            (attempt, worker, name, mode),
            Points(unit=distinct, step=step[last], mode_step=mode_step[last], value=value),
        )


def groups(columns: Columns, rows: npt.NDArray[np.int64], *names: str) -> Iterator[tuple[Any, ...]]:
    """(value of each named column, rows) for each combination that occurs, rows in their order."""
    if not rows.size:
        return
    code = np.zeros(rows.size, dtype=np.int64)
    for name in names:
        values = columns.ints(name)[rows] if name == "attempt" else columns.codes(name)[0][rows]
        _, part = np.unique(values, return_inverse=True)
        code = code * (int(part.max()) + 1) + part
    order = np.argsort(code, kind="stable")
    cuts = np.flatnonzero(np.diff(code[order])) + 1
    for group in np.split(order, cuts):
        first = int(rows[group[0]])
        key = [int(columns.ints(n)[first]) if n == "attempt" else columns.text(n, first) for n in names]
        yield (*key, rows[group])
