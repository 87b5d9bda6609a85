"""Stretches: the step of each row of an index, stored once for adjacent rows.

A stretch is a sequence of adjacent rows of one worker, attempt, mode and step. Files have the rows of a step
next to each other, so a run has about one stretch for each step and file. Threads: belongs to one Index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.format.packed import spans
from tdcore.trial.columns import GrowingColumn, starts_of
from tdcore.trial.common_steps import CommonSteps
from tdcore.trial.dictionary import TextDictionaries

__all__ = ["IN_STRETCH", "Stretches"]

Ints: TypeAlias = npt.NDArray[np.int64]

# NumPy type of each column that is equal for all rows of a stretch.
IN_STRETCH = {"attempt": "i4", "worker": "i4", "mode": "i1", "mode_step": "i8", "step": "i8"}


class Stretches:
    """All stretches of an index. dictionaries: the dictionaries of its text columns."""

    def __init__(self, dictionaries: TextDictionaries) -> None:
        self.columns = {name: GrowingColumn(kind) for name, kind in IN_STRETCH.items()}
        self.common = CommonSteps(self.columns, dictionaries)
        self._first = GrowingColumn("i8")  # the first row of each stretch
        self.rows = 0
        self._last: tuple[Ints, Ints] | None = None  # the last call of of()

    def __len__(self) -> int:
        return len(self._first.array)

    @property
    def first(self) -> Ints:
        """The first row of each stretch."""
        return self._first.array

    @property
    def lengths(self) -> Ints:
        """The number of rows of each stretch."""
        return np.diff(self.first, append=self.rows)

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of IN_STRETCH with one element per stretch; `step` has common steps."""
        return self.common.array if name == "step" else self.columns[name].array

    @property
    def own_steps(self) -> Ints:
        """The global step of each stretch in its worker's own numbers."""
        return self.columns["step"].array

    def add(self, lengths: Ints, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add stretches. Call `update` after the last one."""
        self._first.extend(self.rows + np.cumsum(lengths) - lengths)
        for name, column in self.columns.items():
            column.extend(np.asarray(columns[name]))
        self.rows += int(lengths.sum())

    def add_rows(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add the stretches of these rows. columns: one element per row."""
        rows = len(columns["step"])
        first = np.flatnonzero(starts_of(*(columns[name] for name in IN_STRETCH)))
        lengths = np.diff(first, append=rows)
        self.add(lengths, {name: columns[name][first] for name in IN_STRETCH})

    def update(self) -> None:
        """Assign common steps to the stretches that were added."""
        self.common.update()

    def of(self, rows: Ints) -> Ints:
        """The stretch of each row."""
        if self._last is not None and self._last[0] is rows:  # several columns at the same rows
            return self._last[1]
        if len(rows) and _is_range(rows):
            first, end = int(rows[0]), int(rows[-1]) + 1
            low, high = np.searchsorted(self.first, (first, end - 1), side="right").tolist()
            bounds = np.append(np.maximum(self.first[low - 1 : high], first), end)
            found: Ints = np.repeat(np.arange(low - 1, high), np.diff(bounds))
        else:
            found = np.searchsorted(self.first, rows, side="right") - 1
        self._last = (rows, found)
        return found

    def forget(self) -> None:
        """Release the memory of the last call of `of`."""
        self._last = None

    def rows_of(self, stretches: Ints) -> Ints:
        """All rows of these stretches, in the order of the stretches."""
        return spans(self.first[stretches], self.lengths[stretches])


def _is_range(rows: Ints) -> bool:
    """Whether each row is the one after the row before it."""
    return int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((rows[1:] - rows[:-1] == 1).all())
