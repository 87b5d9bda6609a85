"""Entries: the combinations of name, kind, status and mode in one large index file. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Entries"]

Mask: TypeAlias = npt.NDArray[np.bool_]


class Entries:
    """The combinations of name, kind, status and mode in the rows of one large file, as codes.

    first, end: The rows of the file in the index, end exclusive. plain: see Catalogue.
    """

    __slots__ = ("codes", "end", "first", "plain")

    def __init__(
        self, first: int, end: int, codes: Mapping[str, npt.NDArray[np.int64]], *, plain: bool
    ) -> None:
        self.plain = plain
        self.first = first
        self.end = end
        self.codes = codes

    def passing(self, tests: Mapping[str, Mask]) -> Mask:
        """Mask of the entries that pass all tests; see RowStore.find."""
        mask = np.ones(len(self.codes["name"]), dtype=np.bool_)
        for name, test in tests.items():
            if name in self.codes:
                mask &= test[self.codes[name]]
        return mask
