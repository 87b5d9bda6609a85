"""LocatedRows: the rows of large files that pass the tests of a search, as far as the catalogues show them.

Plain values; belongs to one search.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.trial.entries import Entries
from tdcore.trial.stretches import IN_STRETCH, Stretches

__all__ = ["LocatedRows"]

Mask: TypeAlias = npt.NDArray[np.bool_]
Rows: TypeAlias = npt.NDArray[np.int64]


_IN_ENTRIES = frozenset(("name", "kind", "status", "mode", "worker"))


class LocatedRows:
    """The rows that pass all tests; see RowStore.find.

    Args:
        entries: The entries of the large files, by their first rows.
        stretches: All stretches of the index.
        tests, chosen: The tests, and a mask of the stretches that are searched; None: all stretches.
    """

    def __init__(
        self, entries: Sequence[Entries], stretches: Stretches, tests: Mapping[str, Mask], chosen: Mask | None
    ) -> None:
        self._entries = entries
        self._firsts = [each.first for each in entries]
        self._stretches = stretches
        self._tests = tests
        self._chosen = chosen
        self._file: Entries | None = None  # of the last call
        self._passing = np.empty(0, dtype=np.bool_)  # of the entries of the file
        self._rows: Rows | None = None  # of the file; None until they are needed

    def all_pass(self, row: int) -> bool:
        """Whether all rows of the file with this row pass the tests."""
        return self._of_file(row) is not None and bool(self._passing.all())

    def within(self, begin: int, end: int) -> Rows | None:
        """The rows among begin..end-1, which are in one file, as distances from `begin`.

        None if the catalogue does not show them. The order of the rows must be known.
        """
        file = self._of_file(begin)
        if file is None or file.order is None:
            return None
        if self._rows is None:
            first = self._stretches.first
            part = slice(*np.searchsorted(first, (file.first, file.end)).tolist())
            all_of_file = np.ones(part.stop - part.start, dtype=np.bool_)
            chosen = all_of_file if self._chosen is None else self._chosen[part]
            self._rows = file.order.rows_with(self._passing, chosen, first[part])
        low, high = np.searchsorted(self._rows, (begin, end)).tolist()
        found: Rows = self._rows[low:high] - begin
        return found

    def _of_file(self, row: int) -> Entries | None:
        """The file with a row; None if the tests are of stretches only, or of columns outside catalogues."""
        at = bisect_right(self._firsts, row) - 1
        file = self._entries[at] if at >= 0 else None
        tested = self._tests.keys()
        if file is None or tested <= IN_STRETCH.keys() or not tested <= _IN_ENTRIES:
            return None
        if file is not self._file:
            self._file, self._rows, self._passing = file, None, file.passing(self._tests)
        return file
