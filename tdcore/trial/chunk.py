"""Chunk: adjacent rows of the index in one file, whose columns are read when they are needed.

Large files are split into chunks of several row groups, so a query for a few steps decodes only a few row
groups, and a query for all steps decodes several at the same time. The columns of a small file stay in memory
after they were read. Those of a large file (LazyChunk) do not, except for a cache of limited size, so a query
needs memory for its result and for one chunk. Threads: chunks belong to one reader. The reader uses several
threads, each with its own chunks.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.format import layout
from tdcore.trial.catalogued_rows import CATALOGUED, CataloguedRows

__all__ = [
    "Chunk",
    "Codes",
    "ColumnCache",
    "Columns",
    "LazyChunk",
    "gather",
    "gather_codes",
    "joined_columns",
    "load",
    "taken",
    "whole_column",
]

Rows: TypeAlias = npt.NDArray[np.int64]
Columns: TypeAlias = dict[str, pa.ChunkedArray]
Codes: TypeAlias = dict[str, npt.NDArray[Any]]

_MANY_ROWS = 20_000  # larger queries are decoded by several threads


class Chunk:
    """Adjacent rows of one index file.

    Args:
        rows: Number of rows.
        level: Number of joins with other chunks; -1 for a chunk that is never joined.
        load: Reads columns for exactly these rows, in order, each without chunks.
        columns: The columns that are already read.
    """

    __slots__ = ("_columns", "_load", "_wide", "level", "rows")

    def __init__(
        self,
        rows: int,
        load: Callable[[Sequence[str]], pa.Table] | None,
        wide: Sequence[str],
        *,
        columns: Columns | None = None,
        level: int = 0,
    ) -> None:
        self.rows = rows
        self.level = level
        self._load = load
        self._wide = wide
        self._columns: Columns = columns or {}

    def lacks(self, names: Sequence[str]) -> bool:
        """Whether any of these columns must be read first."""
        return any(name not in self._columns for name in names)

    def wide(self, names: Sequence[str]) -> Columns:
        """Columns by name. Missing columns are read from the file. Raises RunCorrupt."""
        lacking = [name for name in names if name not in self._columns]
        if lacking:
            assert self._load is not None
            table = self._load(lacking)
            for name in lacking:
                self._columns[name] = table.column(name)
        if len(self._columns) == len(self._wide):
            self._load = None  # closes the file
        return {name: self._columns[name] for name in names}

    @staticmethod
    def joined(chunks: Sequence[Chunk]) -> Chunk:
        """One chunk in memory with the rows of several chunks of one level, in order."""
        wide = chunks[0]._wide
        parts = [chunk.wide(wide) for chunk in chunks]
        columns = {
            name: whole_column(
                pa.chunked_array(
                    [piece for part in parts for piece in part[name].chunks], parts[0][name].type
                )
            )
            for name in wide
        }
        rows = sum(chunk.rows for chunk in chunks)
        return Chunk(rows, None, wide, columns=columns, level=chunks[0].level + 1)


class ColumnCache:
    """Columns of large files that were read last. limit: maximum number of bytes. Threads: any."""

    def __init__(self, limit: int = 48 << 20) -> None:
        self._limit = limit
        self._bytes = 0
        self._found: OrderedDict[tuple[int, str], Any] = OrderedDict()
        self._lock = Lock()
        self._numbers = count()

    def next_number(self) -> int:
        """A number for a new chunk."""
        return next(self._numbers)

    def get(self, chunk: int, name: str) -> Any:
        """The column of a chunk; None if it is not in the cache."""
        with self._lock:
            found = self._found.get((chunk, name))
            if found is not None:
                self._found.move_to_end((chunk, name))
            return found

    def put(self, chunk: int, name: str, column: Any) -> None:
        """Add a column, and remove the columns that were used the longest time ago."""
        with self._lock:
            if (chunk, name) in self._found:
                return
            self._found[chunk, name] = column
            self._bytes += column.nbytes
            while self._bytes > self._limit and len(self._found) > 1:
                self._bytes -= self._found.popitem(last=False)[1].nbytes


class LazyChunk(Chunk):
    """Adjacent rows of one large index file. None of its columns stays in memory.

    Args:
        rows: Number of rows.
        load: Reads columns of the index for exactly these rows, in order, each without chunks.
        convert: Checks narrow columns and converts them to arrays, see index_file.NARROW.
        wide: Names of the columns that are not converted.
        number: A number that no other chunk of the index has.
        cache: The cache of all chunks of the index.
        confirm: Raises RunCorrupt unless the catalogue of the file describes the rows.
        catalogued: Columns that follow from the catalogue of the file; None: all columns are read.
    """

    __slots__ = ("_cache", "_convert", "_number", "_replaced", "catalogued", "confirm")

    def __init__(
        self,
        rows: int,
        load: Callable[[Sequence[str]], pa.Table],
        convert: Callable[[pa.Table], Codes],
        wide: Sequence[str],
        *,
        number: int,
        cache: ColumnCache,
        confirm: Callable[[], None],
        catalogued: CataloguedRows | None,
    ) -> None:
        super().__init__(rows, load, wide, level=-1)
        self.confirm = confirm
        self.catalogued = catalogued
        self._convert = convert
        self._number = number
        self._cache = cache
        self._replaced: Codes = {}

    def lacks(self, names: Sequence[str]) -> bool:
        """Always False: columns are not read in advance."""
        return False

    def wide(self, names: Sequence[str]) -> Columns:
        """Columns by name. Raises RunCorrupt."""
        return self.read((), names)[1]

    def codes(self, names: Sequence[str]) -> Codes:
        """Narrow columns by name. Raises RunCorrupt."""
        return self.read(names, ())[0]

    def read(
        self, narrow: Sequence[str], wide: Sequence[str], rows: Rows | None = None, *, keep: bool = True
    ) -> tuple[Codes, Columns]:
        """Narrow columns as arrays and other columns as they are, from one pass over the file.

        rows: Rows of the chunk, in order; None: all rows. keep: add the columns to the cache. Raises
        RunCorrupt.
        """
        found: dict[str, Any] = {name: self._replaced.get(name) for name in narrow}
        for name in (*narrow, *wide):
            if found.get(name) is None:
                found[name] = self._cache.get(self._number, name)
        lacking = [name for name, column in found.items() if column is None]
        for name, column in self._read(lacking).items() if lacking else ():
            if found.get(name, column) is None:
                found[name] = column
            if keep:
                self._cache.put(self._number, name, column)
        codes, columns = {name: found[name] for name in narrow}, {name: found[name] for name in wide}
        if rows is None:
            return codes, columns
        return {name: column[rows] for name, column in codes.items()}, taken(columns, rows)

    def _read(self, names: Sequence[str]) -> dict[str, Any]:
        """Columns from the catalogue or from the file, and columns that are checked together with them."""
        found: dict[str, Any] = {}
        if self.catalogued is not None:
            known = [name for name in names if name in CATALOGUED]
            if known:
                self.confirm()
                found.update(self.catalogued.codes(known))
                names = [name for name in names if name not in found]
        if names:
            assert self._load is not None
            table = self._load(names)
            narrow = [name for name in table.column_names if name not in self._wide]
            codes = self._convert(table.select(narrow)) if narrow else {}
            found |= {n: codes[n] if n in codes else table.column(n) for n in table.column_names}
        return found

    def replace(self, name: str, rows: Rows, values: npt.NDArray[Any]) -> None:
        """Set values of a narrow column. They stay in memory."""
        column = self._replaced[name] if name in self._replaced else self.codes([name])[name].copy()
        column[rows] = values
        self._replaced[name] = column


def whole_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same column without chunks, with one dictionary."""
    if column.num_chunks == 1:
        return column
    if column.num_chunks == 0:
        return pa.chunked_array([pa.nulls(0, column.type)], column.type)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.ChunkedArray) else pa.chunked_array([whole], column.type)


def load(chunks: Sequence[Chunk], names: Sequence[str]) -> None:
    """Read missing columns of chunks, several at a time if they are large."""
    lacking = [chunk for chunk in chunks if chunk.lacks(names)]
    workers = min(len(lacking), len(os.sched_getaffinity(0)), 8)
    if workers < 2 or sum(chunk.rows for chunk in lacking) < _MANY_ROWS:
        for chunk in lacking:
            chunk.wide(names)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="tdcore-read") as pool:
        for _ in pool.map(lambda chunk: chunk.wide(names), lacking):
            pass


def gather(
    chunks: Sequence[Chunk], starts: Sequence[int], names: Sequence[str], rows: Rows | None
) -> Columns:
    """Columns of rows of the concatenated chunks, in the order of `rows`.

    Only chunks with some of the rows are read.

    Args:
        chunks: The chunks.
        starts: The first row of each chunk.
        names: Names of the columns.
        rows: The rows; None: all rows.
    """
    schema = layout.index_schema()
    kinds = {name: schema.field(name).type for name in names}
    if not names or not chunks or (rows is not None and len(rows) == 0):
        return {name: pa.chunked_array([], kind) for name, kind in kinds.items()}
    if rows is not None and len(rows) == 1:
        at = bisect_right(starts, int(rows[0])) - 1
        return {
            name: column.slice(int(rows[0]) - starts[at], 1)
            for name, column in chunks[at].wide(names).items()
        }
    order: Rows | None = None
    if rows is None:
        used: list[tuple[Chunk, Rows | None]] = [(chunk, None) for chunk in chunks]
    else:
        rows, order = _by_home(starts, rows)
        used = _used(chunks, starts, rows)
    load([chunk for chunk, _ in used], names)
    pieces: dict[str, list[pa.Array]] = {name: [] for name in names}
    for columns in _each(lambda chunk, local: taken(chunk.wide(names), local), used):
        for name, column in columns.items():
            pieces[name] += column.chunks
    return joined_columns(pieces, order)


def gather_codes(
    chunks: Sequence[Chunk], starts: Sequence[int], narrow: Sequence[str], wide: Sequence[str], rows: Rows
) -> tuple[Codes, Columns]:
    """Narrow and wide columns of rows in lazy chunks, from one pass over the files, in this order."""
    if not len(rows):
        return {name: np.empty(0, dtype=np.int64) for name in narrow}, joined_columns(
            {n: [] for n in wide}, None
        )
    rows, order = _by_home(starts, rows)

    def read(chunk: Chunk, local: Rows | None) -> tuple[Codes, Columns]:
        assert isinstance(chunk, LazyChunk)
        return chunk.read(narrow, wide, local)

    codes: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in narrow}
    pieces: dict[str, list[pa.Array]] = {name: [] for name in wide}
    for some, columns in _each(read, _used(chunks, starts, rows)):
        for name, part in some.items():
            codes[name].append(part)
        for name, column in columns.items():
            pieces[name] += column.chunks
    joined = {name: np.concatenate(parts) for name, parts in codes.items()}
    if order is not None:
        back = np.argsort(order, kind="stable")
        joined = {name: column[back] for name, column in joined.items()}
    return joined, joined_columns(pieces, order)


def taken(columns: Columns, local: Rows | None) -> Columns:
    """Some rows of columns without chunks. local: the rows; None: all rows."""
    if local is None or not columns:
        return columns
    table = pa.record_batch([column.chunk(0) for column in columns.values()], names=list(columns))
    found = table.take(pa.array(local))
    return {name: pa.chunked_array([found.column(at)]) for at, name in enumerate(columns)}


def _each(function: Callable[[Chunk, Rows | None], Any], used: Sequence[tuple[Chunk, Rows | None]]) -> Any:
    """The result of a function for each chunk, in order; several lazy chunks at a time."""
    workers = min(len(used), len(os.sched_getaffinity(0)), 8)
    if workers < 2 or not any(isinstance(chunk, LazyChunk) for chunk, _ in used):
        return (function(*each) for each in used)
    with ThreadPoolExecutor(workers, thread_name_prefix="tdcore-read") as pool:
        return list(pool.map(lambda each: function(*each), used))


def _by_home(starts: Sequence[int], rows: Rows) -> tuple[Rows, Rows | None]:
    """Rows sorted by chunk, and their order; None if they were sorted."""
    home = np.searchsorted(np.array(starts, dtype=np.int64), rows, side="right") - 1
    if not np.any(home[1:] < home[:-1]):
        return rows, None
    order = np.argsort(home, kind="stable")
    return rows[order], order


def _used(chunks: Sequence[Chunk], starts: Sequence[int], rows: Rows) -> list[tuple[Chunk, Rows | None]]:
    """Each chunk with some of the rows, which are sorted by chunk; and its rows, None for all, in order."""
    first_rows = np.array(starts, dtype=np.int64)
    home = np.searchsorted(first_rows, rows, side="right") - 1
    return [
        (chunks[at], _local(mine - first_rows[at], chunks[at].rows)) for at, mine in _by_chunk(rows, home)
    ]


def joined_columns(pieces: Mapping[str, list[pa.Array]], order: Rows | None = None) -> Columns:
    """Columns from their pieces. order: the order in which the rows were read; None: ascending."""
    schema = layout.index_schema()
    back = None if order is None else pa.array(np.argsort(order, kind="stable"))
    found: Columns = {}
    for name, arrays in pieces.items():
        kind = schema.field(name).type
        column = pa.chunked_array(arrays, kind)
        if pa.types.is_dictionary(kind) and column.num_chunks > 1:
            column = column.unify_dictionaries()
        found[name] = column if back is None else whole_column(column).take(back)
    return found


def _by_chunk(rows: Rows, home: Rows) -> Iterator[tuple[int, Rows]]:
    """(chunk, its rows) for each chunk with rows. home: the chunk of each row, ascending."""
    if not len(rows):
        return
    cuts = [0, *(np.flatnonzero(home[1:] != home[:-1]) + 1).tolist(), len(rows)]
    for begin, end in pairwise(cuts):
        yield int(home[begin]), rows[begin:end]


def _local(rows: Rows, size: int) -> Rows | None:
    """Rows of one chunk; None if they are all of its `size` rows, in order."""
    if len(rows) == size and bool(np.array_equal(rows, np.arange(size))):
        return None
    return rows
