"""Columns of a large file that follow from its catalogue: the name, kind and status of each row.

A reader need not read these columns if the catalogue has the order of the rows. Plain values, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.format.catalogue import Catalogue
from tdcore.format.row_order import RowOrder

__all__ = ["CATALOGUED", "CataloguedFile", "CataloguedRows"]

CATALOGUED = ("name", "kind", "status")


class CataloguedFile:
    """The catalogue of a file, with texts as codes of the dictionaries of the index.

    Args:
        catalogue: The catalogue.
        codes: For each column of CATALOGUED, the code of the index for each code of the catalogue.
    """

    def __init__(self, catalogue: Catalogue, codes: Mapping[str, npt.NDArray[Any]]) -> None:
        self._order = catalogue.order
        self._sizes = catalogue.stretches["rows"]
        self._ends = np.cumsum(self._sizes)
        self._codes = {name: codes[name][catalogue.entries[name]] for name in CATALOGUED}

    def rows(self, first: int, end: int) -> CataloguedRows | None:
        """The rows first..end-1 of the file; None if the order of some of them is unknown."""
        order = self._order
        if order is None or not order.is_known(self._stretches(first, end)):
            return None
        return CataloguedRows(self, order, first, end)

    def codes(
        self, names: Sequence[str], order: RowOrder, first: int, end: int
    ) -> dict[str, npt.NDArray[Any]]:
        """Columns of CATALOGUED of the rows first..end-1."""
        part = self._stretches(first, end)
        ends = self._ends[part]
        starts = ends - self._sizes[part]
        begin = np.maximum(starts, first)
        stretches = np.arange(part.start, part.stop)
        entry = order.entries_of(stretches, begin - starts, np.minimum(ends, end) - begin)
        return {name: self._codes[name][entry] for name in names}

    def _stretches(self, first: int, end: int) -> slice:
        """The stretches with the rows first..end-1."""
        low, high = np.searchsorted(self._ends, (first, end - 1), side="right").tolist()
        return slice(low, high + 1)


class CataloguedRows:
    """Name, kind and status of adjacent rows of a file, from its catalogue.

    Args:
        file: The catalogue of the file.
        order: The order of the rows in the stretches of the file.
        first, end: The rows, end exclusive.
    """

    __slots__ = ("_end", "_file", "_first", "_order")

    def __init__(self, file: CataloguedFile, order: RowOrder, first: int, end: int) -> None:
        self._file = file
        self._order = order
        self._first = first
        self._end = end

    def codes(self, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Columns of CATALOGUED."""
        return self._file.codes(names, self._order, self._first, self._end)
