"""Growing: a NumPy array that rows are added to, at amortised constant cost.

Threads: none of its own; an object belongs to one reader.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Growing"]


class Growing:
    """One column. dtype: NumPy name of its element type."""

    __slots__ = ("_array", "_rows")

    def __init__(self, dtype: str) -> None:
        self._array: npt.NDArray[Any] = np.empty(0, dtype=dtype)
        self._rows = 0

    @property
    def array(self) -> npt.NDArray[Any]:
        """What is in it: a view, valid until the next extend."""
        return self._array[: self._rows]

    def extend(self, values: npt.NDArray[Any]) -> None:
        """Adds values at the end."""
        rows = self._rows + len(values)
        if rows > len(self._array):
            bigger = np.empty(max(rows, len(self._array) * 3 // 2), dtype=self._array.dtype)
            bigger[: self._rows] = self.array
            self._array = bigger
        self._array[self._rows : rows] = values
        self._rows = rows
