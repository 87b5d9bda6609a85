"""RowColumns: the columns of all rows of an index, in memory or in their files.

Rows are numbered from 0 in the order in which they were read. Columns are in three places:

- the columns that are equal for all rows of a step are in stretches (stretches.py);
- the other narrow columns (index_file.NARROW) of small files are NumPy arrays;
- those of large files, and all wide columns, are read from the files when they are needed.

`hold` reads several columns of the rows of a query in one pass; while it is active, all methods take these
columns from memory. Threads: belongs to one reader.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.format import layout
from tdcore.trial.chunk import Chunk, ColumnCache, LazyChunk, gather, gather_codes, whole_column
from tdcore.trial.column import Column
from tdcore.trial.columns import GrowingColumn
from tdcore.trial.dictionary import TextDictionaries
from tdcore.trial.entries import Entries
from tdcore.trial.held import Held
from tdcore.trial.index_file import NARROW, WORDS, FileRows
from tdcore.trial.stretches import IN_STRETCH, Stretches

__all__ = ["RowColumns", "Rows"]

Rows: TypeAlias = npt.NDArray[np.int64]

_JOIN_CHUNKS = 64  # number of small chunks that are joined into one
_PLACES = frozenset({"offset", "nbytes", "crc32c"})  # of a payload in its segment
_IN_MEMORY = {name: kind for name, kind in NARROW.items() if name not in IN_STRETCH}


class RowColumns:
    """All rows that were read so far. See the docstring of the module."""

    def __init__(self) -> None:
        self.dictionaries = TextDictionaries()
        self.stretches = Stretches(self.dictionaries)
        self.common = self.stretches.common
        self.entries: list[Entries] = []  # of large files
        self.cache = ColumnCache()
        self._arrays = {name: GrowingColumn(kind) for name, kind in _IN_MEMORY.items()}
        self._chunks: list[Chunk] = []
        self._starts: list[int] = []  # first row of each chunk
        self._shifts: list[int] = []  # row minus its position in _arrays, by chunk
        self._in_memory = 0  # number of rows in _arrays
        self._rows = 0
        self._held: list[Held] = []  # the innermost `hold` is the last

    def __len__(self) -> int:
        return self._rows

    @property
    def in_memory_rows(self) -> int:
        """Number of rows whose narrow columns are in memory."""
        return self._in_memory

    @property
    def is_lazy(self) -> bool:
        """Whether some rows are in large files, whose columns are not in memory."""
        return self._in_memory < self._rows

    @property
    def plain_stretches(self) -> npt.NDArray[np.bool_]:
        """Mask of the stretches of large files whose rows are plain, see Catalogue."""
        found = np.zeros(len(self.stretches), dtype=np.bool_)
        for each in self.entries:
            if each.plain:
                first, end = np.searchsorted(self.stretches.first, (each.first, each.end))
                found[first:end] = True
        return found

    # Columns. -------------------------------------------------------------------------------------

    def column(self, name: str) -> Any:
        """A narrow column over all rows: a Column, or an array that is valid until the next `advance`.

        Texts are codes of `dictionaries[name]`; steps are common steps.
        """
        return Column(self, name) if name in IN_STRETCH or self.is_lazy else self._arrays[name].array

    @property
    def own_steps(self) -> Any:
        """The global step of each row in its worker's own numbers. A column like those of `column`."""
        return Column(self, "own_step")

    def narrow(self, name: str, rows: Rows) -> npt.NDArray[Any]:
        """The values of a narrow column, or of "own_step", at these rows."""
        if name == "own_step":
            return self.stretches.own_steps[self.stretches.of(rows)]
        if name in IN_STRETCH:
            return self.stretches.column(name)[self.stretches.of(rows)]
        if not self.is_lazy:
            return self._arrays[name].array[rows]
        for held in reversed(self._held):
            places = held.places(rows) if name in held.narrow else None
            if places is not None:
                return held.narrow[name][places]
        return self._fetch([name], [], rows)[0][name]

    def texts(self, name: str) -> list[str]:
        """The distinct texts of a narrow column; a code is a position in this list."""
        return self.dictionaries[name].texts

    def text(self, name: str, row: int) -> str | None:
        """The text of a narrow column at one row."""
        code = int(self.narrow(name, np.array([row], dtype=np.int64))[0])
        return None if code < 0 else self.dictionaries[name].texts[code]

    def wide(self, name: str, rows: Rows) -> pa.ChunkedArray:
        """A column that is not narrow, at these rows, in this order."""
        return self._wide([name], rows)[name]

    def table(self, rows: Rows, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows as a table, in this order. columns: names; None: all columns of the index."""
        schema = layout.index_schema()
        names = list(schema.names if columns is None else columns)
        marked = not _PLACES.isdisjoint(names)  # their nulls are those of `segment`
        with self.hold(rows, [*names, *(["segment"] if marked else [])]):
            wide = self._wide([name for name in names if name not in NARROW], rows)
            arrays = [wide[name] if name in wide else self._narrow_arrow(name, rows) for name in names]
        return pa.table(arrays, schema=pa.schema([schema.field(name) for name in names]))

    @contextmanager
    def hold(self, rows: Rows, names: Sequence[str]) -> Iterator[None]:
        """Within the block, the columns `names` of these rows are in memory, if any of the rows is lazy."""
        lacking = [name for name in dict.fromkeys(names) if name not in IN_STRETCH]
        for held in self._held:
            if held.places(rows) is not None:
                lacking = [name for name in lacking if name not in held.narrow and name not in held.columns]
        if not self.is_lazy or not lacking or len(rows) == 0:
            yield
            return
        ordered = rows if bool((rows[1:] > rows[:-1]).all()) else np.unique(rows)
        narrow = [name for name in lacking if name in NARROW]
        codes, columns = self._fetch(narrow, [name for name in lacking if name not in NARROW], ordered)
        with self.holding(Held(ordered, codes, columns)):
            yield

    @contextmanager
    def holding(self, held: Held) -> Iterator[Held]:
        """Within the block, these columns are in memory."""
        self._held.append(held)
        try:
            yield held
        finally:
            self._held.pop()
            self.stretches.forget()

    def in_memory(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        """A narrow column of the rows begin..end-1 of small files, with no large file between them."""
        if name in IN_STRETCH:
            return self.narrow(name, np.arange(begin, end))
        at = begin - self._shifts[bisect_left(self._starts, begin)]
        return self._arrays[name].array[at : at + end - begin]

    # Adding rows. ---------------------------------------------------------------------------------

    def add(self, found: Sequence[FileRows], homes: Sequence[layout.FileRange]) -> None:
        """Add the rows of files."""
        in_memory = [each.arrays for each in found if each.arrays is not None]
        for name, column in self._arrays.items():
            column.extend(*(arrays[name] for arrays in in_memory))
        for each, file in zip(found, homes, strict=True):
            first = self._rows
            for chunk in each.chunks:
                self._chunks.append(chunk)
                self._starts.append(self._rows)
                self._shifts.append(self._rows - self._in_memory)
                self._rows += chunk.rows
                self._in_memory += 0 if isinstance(chunk, LazyChunk) else chunk.rows
            if each.arrays is not None:
                if len(each.arrays["step"]):
                    self.stretches.add_rows(each.arrays)
            else:
                self._add_catalogue(each, file, first)
        self.stretches.update()

    def _add_catalogue(self, found: FileRows, file: layout.FileRange, first: int) -> None:
        """Add the steps and names of a large file."""
        catalogue = found.catalogue
        assert catalogue is not None
        codes = {name: self.dictionaries[name].codes(words) for name, words in catalogue.words.items()}
        stretches = catalogue.stretches
        count = len(stretches["rows"])
        worker = self.dictionaries["worker"].codes([file.worker])[0]
        self.stretches.add(
            stretches["rows"],
            {
                "attempt": np.full(count, file.attempt),
                "worker": np.full(count, worker),
                "mode": codes["mode"][stretches["mode"]],
                "mode_step": stretches["mode_step"],
                "step": stretches["step"],
            },
        )
        entries = {name: codes[name][column] for name, column in catalogue.entries.items()}
        entries["worker"] = np.full(len(entries["name"]), worker)
        details, dtype = catalogue.details, None
        if details is not None:
            dtype = self.dictionaries["dtype"].codes(details.dtypes)[details.dtype]
        self.entries.append(
            Entries(
                first,
                self._rows,
                entries,
                plain=catalogue.plain,
                details=details,
                order=catalogue.order,
                dtype=dtype,
            )
        )

    def join_small(self) -> None:
        """Join small chunks at the end, so that the number of chunks grows logarithmically with the polls."""
        while len(self._chunks) >= _JOIN_CHUNKS:
            tail = self._chunks[-_JOIN_CHUNKS:]
            if any(chunk.level != tail[0].level or chunk.level < 0 for chunk in tail):
                return
            self._chunks[-_JOIN_CHUNKS:] = [Chunk.joined(tail)]
            del self._starts[-_JOIN_CHUNKS + 1 :]
            del self._shifts[-_JOIN_CHUNKS + 1 :]

    def replace(self, name: str, rows: Rows, values: npt.NDArray[Any]) -> None:
        """Set values of a narrow column that is not in stretches."""
        if not self.is_lazy:
            self._arrays[name].array[rows] = values
            return
        starts = np.array(self._starts, dtype=np.int64)
        home = np.searchsorted(starts, rows, side="right") - 1
        for at in np.unique(home).tolist():
            mine, chunk = home == at, self._chunks[at]
            if isinstance(chunk, LazyChunk):
                chunk.replace(name, rows[mine] - starts[at], values[mine])
            else:
                self._arrays[name].array[rows[mine] - self._shifts[at]] = values[mine]

    # Reading. -------------------------------------------------------------------------------------

    def _fetch(
        self, narrow: Sequence[str], wide: Sequence[str], rows: Rows
    ) -> tuple[dict[str, npt.NDArray[Any]], dict[str, pa.ChunkedArray]]:
        """Columns of rows, from memory or from their files."""
        if not self._chunks:
            empty = np.empty(0, dtype=np.int64)
            return dict.fromkeys(narrow, empty), gather([], [], wide, rows)
        home = np.searchsorted(np.array(self._starts, dtype=np.int64), rows, side="right") - 1
        lazily = np.array([isinstance(chunk, LazyChunk) for chunk in self._chunks])[home]
        codes = {name: np.empty(len(rows), dtype=NARROW[name]) for name in narrow}
        if not lazily.all():
            places = rows[~lazily] - np.array(self._shifts, dtype=np.int64)[home[~lazily]]
            for name in narrow:
                codes[name][~lazily] = self._arrays[name].array[places]
        if lazily.all() or not wide:
            read, columns = gather_codes(self._chunks, self._starts, narrow, wide, rows[lazily])
        else:
            read, _ = gather_codes(self._chunks, self._starts, narrow, (), rows[lazily])
            columns = gather(self._chunks, self._starts, wide, rows)
        for name in narrow:
            codes[name][lazily] = read[name]
        return codes, columns

    def _narrow_arrow(self, name: str, rows: Rows) -> pa.Array:
        values = self.narrow(name, rows)
        if name in WORDS:
            return self.dictionaries[name].to_arrow(values)
        kind = layout.index_schema().field(name).type
        if name in _PLACES:
            return pa.array(values, kind, mask=self.narrow("segment", rows) < 0)
        return pa.array(values, kind)

    def _wide(self, names: Sequence[str], rows: Rows) -> dict[str, pa.ChunkedArray]:
        for held in reversed(self._held):
            places = held.places(rows) if names and held.columns.keys() >= set(names) else None
            if places is not None:
                if len(places) == len(held.rows) and bool((np.diff(places) == 1).all()):
                    return {name: held.columns[name] for name in names}
                at = pa.array(places)
                return {name: whole_column(held.columns[name]).take(at) for name in names}
        whole = len(rows) == self._rows and bool(np.array_equal(rows, np.arange(self._rows)))
        return gather(self._chunks, self._starts, names, None if whole else rows)
