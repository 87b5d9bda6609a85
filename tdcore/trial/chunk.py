"""Chunk: adjacent rows of the index in one file, whose columns are read when they are needed.

Large files are split into chunks of several row groups, so a query for a few steps decodes only a few row
groups, and a query for all steps decodes several at the same time. Threads: chunks belong to one reader. The
reader uses several threads, each with its own chunks.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.format import layout

__all__ = ["Chunk", "gather", "load", "whole_column"]

Rows = npt.NDArray[np.int64]
Columns = dict[str, pa.ChunkedArray]

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
        used: list[tuple[Chunk, pa.Array | None]] = [(chunk, None) for chunk in chunks]
    else:
        first_rows = np.array(starts, dtype=np.int64)
        home = np.searchsorted(first_rows, rows, side="right") - 1
        if np.any(home[1:] < home[:-1]):
            order = np.argsort(home, kind="stable")
            rows, home = rows[order], home[order]
        used = [
            (chunks[at], _local(mine - first_rows[at], chunks[at].rows)) for at, mine in _by_chunk(rows, home)
        ]
    load([chunk for chunk, _ in used], names)
    pieces: dict[str, list[pa.Array]] = {name: [] for name in names}
    for chunk, local in used:
        for name, column in chunk.wide(names).items():
            pieces[name].append(column.chunk(0) if local is None else column.chunk(0).take(local))
    found: Columns = {}
    back = None if order is None else pa.array(np.argsort(order, kind="stable"))
    for name, kind in kinds.items():
        column = pa.chunked_array(pieces[name], kind)
        if pa.types.is_dictionary(kind) and column.num_chunks > 1:
            column = column.unify_dictionaries()
        found[name] = column if back is None else whole_column(column).take(back)
    return found


def _by_chunk(rows: Rows, home: Rows) -> Iterator[tuple[int, Rows]]:
    """(chunk, its rows) for each chunk with rows. home: the chunk of each row, ascending."""
    cuts = [0, *(np.flatnonzero(home[1:] != home[:-1]) + 1).tolist(), len(rows)]
    for begin, end in pairwise(cuts):
        yield int(home[begin]), rows[begin:end]


def _local(rows: Rows, size: int) -> pa.Array | None:
    """Rows of one chunk for take(); None if they are all of its `size` rows, in order."""
    if len(rows) == size and bool(np.array_equal(rows, np.arange(size))):
        return None
    return pa.array(rows)
