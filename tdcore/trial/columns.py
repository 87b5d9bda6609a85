"""Columns over all rows: GrowingColumn (an array with amortised constant cost per append) and helpers.

Threads: an object belongs to one reader.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["GrowingColumn", "distinct", "starts_of"]


class GrowingColumn:
    """One column. dtype: NumPy name of its element type."""

    __slots__ = ("_array", "_rows")

    def __init__(self, dtype: str) -> None:
        self._array: npt.NDArray[Any] = np.empty(0, dtype=dtype)
        self._rows = 0

    @property
    def array(self) -> npt.NDArray[Any]:
        """The values as a view, valid until the next extend."""
        return self._array[: self._rows]

    def extend(self, *parts: npt.NDArray[Any]) -> None:
        """Append values. Several arrays in one call cost at most one copy of the existing values."""
        rows = self._rows + sum(map(len, parts))
        if rows > len(self._array):
            room = rows if self._rows == 0 else max(rows, len(self._array) * 3 // 2)
            bigger = np.empty(room, dtype=self._array.dtype)
            bigger[: self._rows] = self.array
            self._array = bigger
        for part in parts:
            self._array[self._rows : self._rows + len(part)] = part
            self._rows += len(part)


def distinct(values: npt.NDArray[np.integer]) -> list[int]:
    """The distinct numbers, sorted. Fast if all are equal, the usual case for attempts and workers."""
    if len(values) == 0 or (values == values[0]).all():
        return [int(value) for value in values[:1]]
    return [int(value) for value in np.unique(values).tolist()]


def starts_of(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Mask of rows that differ from the row before in one of these columns; True for the first row."""
    starts = np.zeros(len(columns[0]), dtype=np.bool_)
    starts[:1] = True
    for column in columns:
        starts[1:] |= column[1:] != column[:-1]
    return starts
