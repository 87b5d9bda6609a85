"""Chunk: rows of the index that lie together in one file, and their columns that are read when asked for.

Large files are cut into chunks of some row groups, so that a question about a few steps decodes a few row
groups, and so that a question about everything decodes several at a time. Threads: chunks belong to one
reader; while it reads, several threads of its own work, each on chunks of its own.
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

_MANY_ROWS = 20_000  # from here on chunks are decoded by several threads


class Chunk:
    """rows: how many. level: how often they were joined with others; -1 for a chunk that is never joined.

    load: reads columns for exactly these rows, in order, each in one piece. columns: those that are there.
    wide: names of all columns that it can give.
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
        """Whether some of these columns must be read first."""
        return any(name not in self._columns for name in names)

    def wide(self, names: Sequence[str]) -> Columns:
        """Columns by name, read from the file where they were not before. Raises RunCorrupt."""
        lacking = [name for name in names if name not in self._columns]
        if lacking:
            assert self._load is not None
            table = self._load(lacking)
            for name in lacking:
                self._columns[name] = table.column(name)
        if len(self._columns) == len(self._wide):
            self._load = None  # lets go of the file
        return {name: self._columns[name] for name in names}

    @staticmethod
    def joined(chunks: Sequence[Chunk]) -> Chunk:
        """One chunk with the rows of several of one level, in order, held in memory."""
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
    """The same column in one piece, with one dictionary."""
    if column.num_chunks == 1:
        return column
    if column.num_chunks == 0:
        return pa.chunked_array([pa.nulls(0, column.type)], column.type)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.ChunkedArray) else pa.chunked_array([whole], column.type)


def load(chunks: Sequence[Chunk], names: Sequence[str]) -> None:
    """Reads these columns of the chunks that lack them, several at a time when they are large."""
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
    """Columns of these rows of all chunks put one after the other, in this order. rows: None for all.

    starts: the first row of each chunk. Only chunks that hold some of the rows are read.
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
    """(chunk, its rows) for each chunk that holds some; home: chunk of each row, ascending."""
    cuts = [0, *(np.flatnonzero(home[1:] != home[:-1]) + 1).tolist(), len(rows)]
    for begin, end in pairwise(cuts):
        yield int(home[begin]), rows[begin:end]


def _local(rows: Rows, size: int) -> pa.Array | None:
    """Rows of one chunk for taking; None when they are all of its `size` rows, in order."""
    if len(rows) == size and bool(np.array_equal(rows, np.arange(size))):
        return None
    return pa.array(rows)
