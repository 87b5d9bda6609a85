"""Held: columns of the rows of one query in memory. Plain values; belongs to one reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Held"]

Rows: TypeAlias = npt.NDArray[np.int64]


class Held:
    """Columns of some rows in memory. rows: sorted."""

    __slots__ = ("_last", "columns", "narrow", "rows")

    def __init__(
        self, rows: Rows, narrow: Mapping[str, npt.NDArray[Any]], columns: Mapping[str, pa.ChunkedArray]
    ) -> None:
        self.rows = rows
        self.narrow = narrow
        self.columns = columns
        self._last: tuple[Rows, Rows | None] = (rows, np.arange(len(rows)))

    def places(self, rows: Rows) -> Rows | None:
        """The positions of rows among the held rows; None if one of them is not held."""
        if len(rows) == 0 or len(self.rows) == 0:
            return None
        if rows is not self._last[0]:  # several columns are often read at the same rows
            at = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
            self._last = (rows, at if bool((self.rows[at] == rows).all()) else None)
        return self._last[1]
