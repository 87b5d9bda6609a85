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
        low, high = np.searchsorted(self._ends, (first, end - 1), side="right").tolist()
        order = self._order
        if order is None or not order.is_known(slice(low, high + 1)):
            return None
        before = first - int(self._ends[low] - self._sizes[low])
        return CataloguedRows(
            order, np.arange(low, high + 1), slice(before, before + end - first), self._codes
        )


class CataloguedRows:
    """Name, kind and status of adjacent rows of a file, from its catalogue.

    Args:
        order: The order of the rows in the stretches of the file.
        stretches: The stretches with the rows.
        part: The rows among those of the stretches.
        codes: The columns of CATALOGUED of each entry.
    """

    __slots__ = ("_codes", "_order", "_part", "_stretches")

    def __init__(
        self,
        order: RowOrder,
        stretches: npt.NDArray[np.int64],
        part: slice,
        codes: Mapping[str, npt.NDArray[Any]],
    ) -> None:
        self._order = order
        self._stretches = stretches
        self._part = part
        self._codes = codes

    def codes(self, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Columns of CATALOGUED."""
        entry = self._order.entries_of(self._stretches)[self._part]
        return {name: self._codes[name][entry] for name in names}
