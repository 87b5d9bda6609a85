"""RowStore: all rows of an index, and searches for rows.

A search tests the codes of text columns. Files are skipped if their catalogue has no combination that passes.
Threads: belongs to one reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.errors import RunCorrupt
from tdcore.trial.chunk import Chunk, Codes, Columns, LazyChunk, joined_columns, taken
from tdcore.trial.held import Held
from tdcore.trial.index_file import NARROW
from tdcore.trial.located_rows import LocatedRows
from tdcore.trial.row_columns import RowColumns, Rows
from tdcore.trial.stretches import IN_STRETCH

__all__ = ["RowStore", "Rows"]

Mask: TypeAlias = npt.NDArray[np.bool_]

_MANY_ROWS = 1 << 20  # a scan of more rows does not use the cache, which has room for fewer columns


class RowStore(RowColumns):
    """All rows that were read so far, with searches."""

    def among(self, name: str, codes: Iterable[int]) -> Mask:
        """A test for `find`: whether a code of a text column is one of `codes`; null (-1) fails."""
        test = np.zeros(len(self.dictionaries[name]) + 1, dtype=np.bool_)
        test[[code for code in codes if code >= 0]] = True
        return test

    def find(self, tests: Mapping[str, Mask], stretches: Mask | None = None, first: int = 0) -> Rows:
        """Rows that pass all tests, sorted.

        Args:
            tests: By the name of a text column, for each code whether it passes. A mask has one more element
                than the dictionary, for null.
            stretches: For each stretch, whether its rows are searched; None: all rows.
            first: Only rows from this number on.
        """
        if not tests and stretches is not None and not first:
            return self.stretches.rows_of(np.flatnonzero(stretches))
        stretches = self._possible(tests, stretches)
        located = LocatedRows(self.entries, self.stretches, tests, stretches)
        found = [np.empty(0, dtype=np.int64)]
        for begin, end, chunk in self._parts():
            if end <= first:
                continue
            if not isinstance(chunk, LazyChunk):
                found.append(self._find_in_memory(begin, end, tests, stretches))
                continue
            mask = self._searched(begin, end, stretches)
            if mask is None:
                continue
            places = _places(begin, end, chunk, mask, located)
            if places is None:
                codes = chunk.codes(_tested(tests))
                places = self._passing(begin, end, mask, tests, codes)
            elif len(places):
                chunk.confirm()
            found.append(begin + places)
        rows: Rows = np.concatenate(found)
        return rows[rows >= first] if first else rows

    def _find_in_memory(
        self, begin: int, end: int, tests: Mapping[str, Mask], stretches: Mask | None
    ) -> Rows:
        """`find` in the rows begin..end-1, which are in memory."""
        mask = self._searched(begin, end, stretches)
        if mask is None:
            return np.empty(0, dtype=np.int64)
        for name, test in tests.items():
            codes = self.in_memory(name, begin, end)
            mask &= test[np.minimum(codes, len(test) - 1)]  # rows after the search began can have new codes
        rows: Rows = begin + np.flatnonzero(mask)
        return rows

    def combinations(self, names: Sequence[str], stretches: Mask) -> Iterator[list[tuple[int, ...]]]:
        """Distinct values of columns of Entries in the rows of some stretches, by their first rows.

        Args:
            names: Columns of Entries.
            stretches: For each stretch, whether its rows are used.
        """
        by_first = {each.first: each for each in self.entries}
        end = 0
        for begin, stop, _ in self._parts():
            each = by_first.get(begin)
            if each is not None and each.end > each.first:
                mask = self._searched(each.first, each.end, stretches)
                if mask is not None and mask.all():
                    end = each.end
                    yield list(zip(*(each.codes[name].tolist() for name in names), strict=True))
            if stop <= end:
                continue
            mask = self._searched(begin, stop, stretches)
            if mask is not None:
                yield self._distinct(names, begin + np.flatnonzero(mask))

    def _distinct(self, names: Sequence[str], rows: Rows) -> list[tuple[int, ...]]:
        """The distinct values of columns in some rows, in the order of the first rows."""
        with self.hold(rows, names):
            columns = [self.narrow(name, rows).astype(np.int64) for name in names]
        key = np.zeros(len(rows), dtype=np.int64)
        for name, column in zip(names, columns, strict=True):
            key = key * (len(self.dictionaries[name]) + 1) + column + 1
        first = np.sort(np.unique(key, return_index=True)[1])
        return list(zip(*(column[first].tolist() for column in columns), strict=True))

    def scan(
        self,
        tests: Mapping[str, Mask],
        stretches: Mask | None,
        narrow: Sequence[str],
        wide: Sequence[str],
    ) -> Iterator[tuple[Rows, Codes, Columns]]:
        """The rows that pass all tests, with columns; one lazy chunk, or the rows in memory, at a time.

        See `find`.
        """
        stretches = self._possible(tests, stretches)
        located = LocatedRows(self.entries, self.stretches, tests, stretches)
        keep = len(self) <= _MANY_ROWS
        for begin, end, chunk in self._parts():
            if not isinstance(chunk, LazyChunk):
                rows = self._find_in_memory(begin, end, tests, stretches)
                if len(rows):
                    yield rows, *self._fetch(narrow, wide, rows)
                continue
            mask = self._searched(begin, end, stretches)
            if mask is None:
                continue
            places = _places(begin, end, chunk, mask, located)
            if places is not None:
                if len(places):
                    chunk.confirm()
                    part = None if len(places) == end - begin else places
                    yield begin + places, *chunk.read(narrow, wide, part, keep=keep)
                continue
            codes, columns = chunk.read([*dict.fromkeys([*_tested(tests), *narrow])], wide, keep=keep)
            places = self._passing(begin, end, mask, tests, codes)
            if not len(places):
                continue
            codes = {name: codes[name] for name in narrow}
            if len(places) < end - begin:
                codes = {name: column[places] for name, column in codes.items()}
                columns = taken(columns, places)
            yield begin + places, codes, columns

    @contextmanager
    def found(
        self, tests: Mapping[str, Mask], stretches: Mask | None, names: Sequence[str]
    ) -> Iterator[Rows]:
        """The rows of `find`; within the block their columns `names` are in memory, as in `hold`.

        The columns of large files are read in one pass together with the columns of the tests.
        """
        if not self.is_lazy or not tests:
            rows = self.find(tests, stretches)
            with self.hold(rows, names):
                yield rows
            return
        wanted = [name for name in dict.fromkeys(names) if name not in IN_STRETCH]
        narrow = [name for name in wanted if name in NARROW]
        wide = [name for name in wanted if name not in NARROW]
        places = [np.empty(0, dtype=np.int64)]
        codes: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in narrow}
        pieces: dict[str, list[pa.Array]] = {name: [] for name in wide}
        for rows, of_rows, columns in self.scan(tests, stretches, narrow, wide):
            places.append(rows)
            for name, part in of_rows.items():
                codes[name].append(part)
            for name, column in columns.items():
                pieces[name] += column.chunks
        joined = {
            name: np.concatenate([np.empty(0, dtype=NARROW[name]), *parts]) for name, parts in codes.items()
        }
        with self.holding(Held(np.concatenate(places), joined, joined_columns(pieces))) as held:
            yield held.rows

    def _parts(self) -> Iterator[tuple[int, int, Chunk | None]]:
        """(first row, end, chunk) of each lazy chunk, and of all rows in memory between two lazy chunks."""
        begin = 0
        for start, chunk in zip(self._starts, self._chunks, strict=True):
            if isinstance(chunk, LazyChunk):
                if begin < start:
                    yield begin, start, None
                yield start, start + chunk.rows, chunk
                begin = start + chunk.rows
        if begin < self._rows:
            yield begin, self._rows, None

    def _possible(self, tests: Mapping[str, Mask], stretches: Mask | None) -> Mask | None:
        """The stretches without those in which no row passes the tests, as far as the catalogues show it."""
        if not tests or not self.entries:
            return stretches
        found = np.ones(len(self.stretches), dtype=np.bool_) if stretches is None else stretches.copy()
        for each in self.entries:
            first, end = np.searchsorted(self.stretches.first, (each.first, each.end)).tolist()
            if found[first:end].any():
                found[first:end] &= each.possible(tests)
        return found

    def _passing(
        self, begin: int, end: int, mask: Mask, tests: Mapping[str, Mask], codes: Codes
    ) -> npt.NDArray[np.int64]:
        """Positions of the rows of a mask that pass all tests, among the rows begin..end-1 of a chunk."""
        whole = bool(mask.all())
        for name, test in tests.items():
            if name in IN_STRETCH:
                passing = test[self.narrow(name, np.arange(begin, end))]
            else:
                passing = _passing(test, codes[name])
            mask = passing if whole else mask & passing
            whole = False
        return np.flatnonzero(mask)

    def _searched(self, begin: int, end: int, stretches: Mask | None) -> Mask | None:
        """Mask of the rows begin..end-1 that are searched; None if there are none."""
        if stretches is None:
            return np.ones(end - begin, dtype=np.bool_)
        first = self.stretches.first
        low = int(np.searchsorted(first, begin, side="right")) - 1
        high = int(np.searchsorted(first, end, side="left"))
        chosen = stretches[low:high]
        if not chosen.any():
            return None
        if chosen.all():
            return np.ones(end - begin, dtype=np.bool_)
        bounds = np.clip(
            np.append(first[low:high], self._rows if high == len(first) else first[high]), begin, end
        )
        return np.repeat(chosen, np.diff(bounds))


def _places(begin: int, end: int, chunk: LazyChunk, mask: Mask, located: LocatedRows) -> Rows | None:
    """Places in a chunk of the rows of a mask that pass the tests, from the catalogue of the file.

    begin, end: The rows of the chunk. None if columns of the tests must be read.
    """
    if located.all_pass(begin):
        return np.flatnonzero(mask)
    if chunk.catalogued is None:
        return None
    return located.within(begin, end)


def _tested(tests: Mapping[str, Mask]) -> list[str]:
    """The columns of tests that are not in stretches."""
    return [name for name in tests if name not in IN_STRETCH]


def _passing(test: Mask, codes: npt.NDArray[Any]) -> Mask:
    """Mask of the codes that pass a test. Raises RunCorrupt for a text that the file's catalogue lacks."""
    if len(codes) and int(codes.max()) >= len(test) - 1:
        raise RunCorrupt("an index file has a text that its catalogue lacks: the file is damaged")
    passing: Mask = test[codes]
    return passing
