"""Entries: the combinations of name, kind, status and mode in one large index file. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.format.catalogue_details import Details
from tdcore.format.row_order import RowOrder

__all__ = ["Entries"]

Mask: TypeAlias = npt.NDArray[np.bool_]


class Entries:
    """The combinations of name, kind, status, mode and worker in the rows of one large file, as codes.

    first, end: The rows of the file in the index, end exclusive. plain, details, order: see Catalogue; the
    codes of `dtype` are those of the dictionary of the index.
    """

    __slots__ = ("codes", "details", "dtype", "end", "first", "order", "plain")

    def __init__(
        self,
        first: int,
        end: int,
        codes: Mapping[str, npt.NDArray[np.int64]],
        *,
        plain: bool,
        details: Details | None = None,
        order: RowOrder | None = None,
        dtype: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.plain = plain
        self.first = first
        self.end = end
        self.codes = codes
        self.details = details
        self.order = order
        self.dtype = dtype

    def passing(self, tests: Mapping[str, Mask]) -> Mask:
        """Mask of the entries that pass all tests; see RowStore.find."""
        mask = np.ones(len(self.codes["name"]), dtype=np.bool_)
        for name, test in tests.items():
            if name in self.codes:
                codes = self.codes[name]  # of a file that was read after the search began, also new ones
                mask &= test[np.minimum(codes, len(test) - 1)]
        return mask

    def possible(self, tests: Mapping[str, Mask]) -> Mask | np.bool_:
        """Mask of the stretches of the file that can have rows that pass all tests; see RowStore.find.

        One value for all stretches if the catalogue has no details.
        """
        passing = self.passing(tests)
        if self.details is None or passing.all() or not passing.any():
            return passing.any()
        return self.details.stretches_with(passing)
