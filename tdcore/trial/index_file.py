"""Reader of one index file: it opens the file, checks the format, and converts the rows to columns.

There are two groups of columns. NARROW columns identify the row and the place of its payload, and become
NumPy arrays. Those of a small file are read and checked immediately. Of a large file (LAZY_ROWS) only the
steps and names are read, from its catalogue if it has one; all other columns are read and checked at each
use. The other columns (WIDE) are always read at their first use. A large file stays memory-mapped for this
purpose, so the file may be deleted in the meantime. Files are untrusted: every fault raises RunCorrupt with
the file's key and the reason. Threads: an object belongs to one reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tdcore.errors import RunCorrupt
from tdcore.format import layout
from tdcore.format.catalogue import (
    CATALOGUE_COLUMNS,
    CATALOGUE_KEY,
    PLAIN_COLUMNS,
    Catalogue,
    CatalogueBuilder,
    CatalogueCheck,
    decode_catalogue,
)
from tdcore.format.documents import clipped
from tdcore.trial.catalogued_rows import CataloguedFile
from tdcore.trial.checked_rows import CheckedRows
from tdcore.trial.chunk import Chunk, ColumnCache, LazyChunk
from tdcore.trial.dictionary import TextDictionaries
from tdcore.trial.parquet_file import RowGroups, Source, open_parquet, open_source, pieces_of, read_columns

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["MODES", "NARROW", "WIDE", "WORDS", "FileRows", "narrow_arrays", "open_rows"]

Rows = npt.NDArray[np.int64]

MODES = ("TRAIN", "EVAL", "PREDICT", "GLOBAL")
# NumPy type of each narrow column; text columns have codes of a TextDictionary, null is -1.
NARROW: dict[str, str] = {
    "attempt": "i4",
    "worker": "i4",
    "ticket": "i8",
    "mode": "i1",
    "mode_step": "i8",
    "step": "i8",
    "seq": "i4",
    "name": "i4",
    "kind": "i2",
    "call": "i4",
    "dtype": "i2",
    "part": "i4",
    "parts": "i4",
    "time_ns": "i8",
    "status": "i1",
    "segment": "i4",
    "offset": "i8",
    "nbytes": "i8",
    "crc32c": "u4",
}
WORDS = ("worker", "mode", "name", "kind", "dtype", "status", "segment")  # narrow columns of text
WIDE = tuple(name for name in layout.index_schema().names if name not in NARROW)

LAZY_ROWS = 1 << 14  # files with at least this number of rows are read lazily
# With this number of rows in memory, files with a catalogue are read lazily from a smaller number of rows on,
# and with four times this number, all of them: each of 1,000 workers has its own files.
MEMORY_ROWS = 1 << 18
SMALL_LAZY_ROWS = 1 << 10
_RELATED = (("segment", "offset", "nbytes", "crc32c"), ("part", "parts"))  # checked together


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """The rows of one index file.

    Attributes:
        chunks: The rows as chunks.
        arrays: The narrow columns by name, one element per row; None for lazy chunks.
        catalogue: Steps and names of the rows of lazy chunks.
        metadata: The metadata of the file.
    """

    chunks: list[Chunk]
    arrays: dict[str, npt.NDArray[Any]] | None
    catalogue: Catalogue | None
    metadata: dict[bytes, bytes] | None


def open_rows(
    sink: Sink,
    root: Path | None,
    file: layout.FileRange,
    wanted: Sequence[tuple[int, int]],
    dictionaries: TextDictionaries,
    cache: ColumnCache | None = None,
    *,
    in_memory: int = 0,
) -> FileRows:
    """Open one index file. Narrow columns of a small file are read, and those of a large file are not.

    Args:
        sink: The run.
        root: Folder of a local run.
        file: The index file.
        wanted: Sorted, inclusive ranges of tickets. Rows of other tickets are left out.
        dictionaries: Dictionaries of the text columns.
        cache: Cache of lazy chunks; None: the columns of large files are also read.
        in_memory: Number of rows that the reader has in memory.

    Raises:
        SinkKeyError: The file does not exist any more.
        RunCorrupt: The file is invalid.
    """
    key = file.index_key
    source = open_source(sink, root, key)
    parquet = open_parquet(source, key)
    metadata: dict[bytes, bytes] | None = parquet.metadata.metadata
    if cache is not None and parquet.metadata.num_rows >= _lazy_rows(metadata, in_memory):
        return _open_lazily(parquet, source, file, wanted, dictionaries, cache)
    table = read_columns(parquet, key, list(NARROW))
    arrays = narrow_arrays(table, file, dictionaries)
    keep = _wanted(arrays["ticket"], wanted)
    pieces = pieces_of(parquet, source, key)
    if keep.all():
        chunks = [_chunk(piece, None) for piece in pieces]
        return FileRows(chunks=chunks, arrays=arrays, catalogue=None, metadata=metadata)
    chunks = []
    for piece in pieces:
        rows = np.flatnonzero(keep[piece.first : piece.first + piece.rows])
        if not len(rows):
            continue
        chunks.append(_chunk(piece, rows))
        if 2 * len(rows) < piece.rows:
            chunks[-1].wide(WIDE)  # so that a few rows do not keep a large file open
    arrays = {name: array[keep] for name, array in arrays.items()}
    return FileRows(chunks=chunks, arrays=arrays, catalogue=None, metadata=metadata)


def _lazy_rows(metadata: dict[bytes, bytes] | None, in_memory: int) -> int:
    """Number of rows from which on a file is read lazily."""
    if in_memory < MEMORY_ROWS or CATALOGUE_KEY not in (metadata or {}):
        return LAZY_ROWS
    return min(SMALL_LAZY_ROWS, LAZY_ROWS) if in_memory < 4 * MEMORY_ROWS else 0


def _wanted(tickets: npt.NDArray[np.int64], wanted: Sequence[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Mask of the tickets in the ranges."""
    keep = np.zeros(len(tickets), dtype=np.bool_)
    for first, last in wanted:
        keep |= (tickets >= first) & (tickets <= last)
    return keep


def _open_lazily(
    parquet: pq.ParquetFile,
    source: Source,
    file: layout.FileRange,
    wanted: Sequence[tuple[int, int]],
    dictionaries: TextDictionaries,
    cache: ColumnCache,
) -> FileRows:
    """The rows of a large file as lazy chunks, with their catalogue."""
    key, metadata = file.index_key, parquet.metadata.metadata
    whole = list(wanted) == [(file.first, file.last)]
    catalogue = None
    if whole:
        try:
            catalogue = decode_catalogue(metadata, parquet.metadata.num_rows)
        except ValueError as error:
            raise RunCorrupt(f"{key} is damaged: {error}; restore it from a copy") from error
    check = None if catalogue is None else CatalogueCheck(catalogue)
    builder, kept = CatalogueBuilder(), list[tuple[RowGroups, Rows | None]]()
    for piece in pieces_of(parquet, source, key):
        rows: Rows | None = None
        if not whole:
            tickets = narrow_arrays(piece.read(["ticket"]), file, dictionaries)["ticket"]
            rows = np.flatnonzero(_wanted(tickets, wanted))
            if not len(rows):
                continue
        kept.append((piece, rows))
        if catalogue is None:
            table = piece.read((*CATALOGUE_COLUMNS, *PLAIN_COLUMNS, "attempt", "worker"))
            builder.add(table if rows is None else table.take(pa.array(rows)))
            narrow_arrays(table.select(["attempt", "worker"]), file, dictionaries)  # only to check them
    catalogue = builder.finish() if catalogue is None else catalogue
    codes = {}
    for name, words in catalogue.words.items():
        _check_words(name, words, file)
        # Now: codes are in the order of the files, see resolve().
        codes[name] = dictionaries[name].codes(words).astype(NARROW[name])
    if catalogue.details is not None:
        _check_words("dtype", catalogue.details.dtypes, file)
    dictionaries["worker"].codes([file.worker])
    catalogued, first, chunks = CataloguedFile(catalogue, codes), 0, list[Chunk]()
    for piece, rows in kept:
        end = first + (piece.rows if rows is None else len(rows))
        chunks.append(_lazy_chunk(piece, rows, file, dictionaries, cache, check, catalogued, first, end))
        first = end
    return FileRows(chunks=chunks, arrays=None, catalogue=catalogue, metadata=metadata)


def _lazy_chunk(
    piece: RowGroups,
    rows: Rows | None,
    file: layout.FileRange,
    dictionaries: TextDictionaries,
    cache: ColumnCache,
    check: CatalogueCheck | None,
    catalogued: CataloguedFile,
    first: int,
    end: int,
) -> LazyChunk:
    """Create a lazy chunk.

    Args:
        piece, file: The row groups, and their file.
        rows: Rows of the piece to keep; None: all rows.
        dictionaries, cache: Of the index.
        check: Compares the rows with the catalogue of the file at the first read; None: the catalogue was
            made from the rows.
        catalogued, first, end: The catalogue, and the rows of the chunk in it.
    """
    convert = partial(narrow_arrays, file=file, dictionaries=dictionaries)
    checked = None if check is None else CheckedRows(piece, file, check, convert)
    read, confirm = (piece.read, _nothing) if checked is None else (checked.read, checked.confirm)

    def load(names: Sequence[str]) -> pa.Table:
        table = read(_with_related(names))
        return table if rows is None or len(rows) == piece.rows else table.take(pa.array(rows))

    return LazyChunk(
        end - first,
        load,
        convert,
        WIDE,
        number=cache.next_number(),
        cache=cache,
        confirm=confirm,
        catalogued=catalogued.rows(first, end),
    )


def _nothing() -> None:
    """The catalogue was made from the rows."""


def _with_related(names: Sequence[str]) -> list[str]:
    """The columns, and those that are checked together with one of them."""
    found = dict.fromkeys(names)
    for group in _RELATED:
        if not found.keys().isdisjoint(group):
            found.update(dict.fromkeys(group))
    return list(found)


def _chunk(piece: RowGroups, rows: Rows | None) -> Chunk:
    """Create a chunk. rows: rows of the piece to keep; None: all rows."""
    level = -1 if piece.rows >= LAZY_ROWS else 0
    if rows is None or len(rows) == piece.rows:
        return Chunk(piece.rows, piece.read, WIDE, level=level)
    taken = pa.array(rows)
    return Chunk(len(rows), lambda names: piece.read(names).take(taken), WIDE, level=level)


def narrow_arrays(
    table: pa.Table, file: layout.FileRange, dictionaries: TextDictionaries
) -> dict[str, npt.NDArray[Any]]:
    """The columns of a table of narrow columns as NumPy arrays, checked."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name in table.column_names:
        kind, column = NARROW[name], table.column(name).chunk(0)
        if name in WORDS:
            check = partial(_check_words, name, file=file)
            codes = dictionaries[name].codes_of(column.dictionary, file.index_key, check)
            indices = column.indices
            if indices.null_count:
                codes, indices = np.append(codes, -1), indices.fill_null(len(codes))
            positions = indices.to_numpy(zero_copy_only=False)
            arrays[name] = codes.astype(kind)[positions]
        else:
            filled = column.fill_null(0 if name == "crc32c" else -1) if column.null_count else column
            arrays[name] = filled.to_numpy(zero_copy_only=False).astype(kind, copy=False)
    _check_rows(arrays, table, file)
    return arrays


def _check_words(name: str, words: Sequence[str | None], file: layout.FileRange) -> None:
    for word in words:
        if word is None or len(word) > layout.MAX_NAME_CHARS:
            length = "null" if word is None else f"{len(word)} characters"
            raise RunCorrupt(
                f"{file.index_key}: a text in column {name!r} is {length}; "
                f"at most {layout.MAX_NAME_CHARS} are allowed"
            )
        if name == "worker" and word != file.worker:
            raise RunCorrupt(
                f"{file.index_key}: rows of worker {clipped(word)} in a file of worker {file.worker!r}"
            )
        if name == "mode" and word not in MODES:
            raise RunCorrupt(f"{file.index_key}: mode {clipped(word)} is none of {', '.join(MODES)}")
        if name == "status" and word not in layout.STATUSES:
            raise RunCorrupt(
                f"{file.index_key}: status {clipped(word)} is none of {', '.join(layout.STATUSES)}"
            )
        if name == "segment":
            parsed = layout.parse_segment_name(word)
            if parsed is None or parsed[0] != file.attempt:
                raise RunCorrupt(
                    f"{file.index_key}: segment {clipped(word)} is not the name of a segment of attempt "
                    f"{file.attempt}; no file outside the run's own data folder is read"
                )


def _check_rows(arrays: dict[str, npt.NDArray[Any]], table: pa.Table, file: layout.FileRange) -> None:
    """Check the relations within each row that other code needs, as far as the columns are there."""
    checks: list[tuple[str, npt.NDArray[np.bool_]]] = []
    if "attempt" in arrays:
        checks.append(("attempt", arrays["attempt"] == file.attempt))
    if "ticket" in arrays:
        checks.append(("ticket", (arrays["ticket"] >= file.first) & (arrays["ticket"] <= file.last)))
    checks += [(name, arrays[name] >= 0) for name in ("call", "seq") if name in arrays]
    if "part" in arrays:
        checks.append(("part", (arrays["part"] >= 0) & (arrays["part"] < arrays["parts"])))
    if "segment" in arrays:
        no_payload = arrays["segment"] < 0
        whole = np.ones(len(no_payload), dtype=np.bool_)
        for name in ("offset", "nbytes", "crc32c"):
            valid = table.column(name).chunk(0).is_valid().to_numpy(zero_copy_only=False)
            whole &= valid | no_payload
        checks.append(("segment", whole))
        checks += [(name, (arrays[name] >= 0) | no_payload) for name in ("offset", "nbytes")]
    for name, good in checks:
        if not good.all():
            row = int(np.argmin(good))
            got = f"{int(arrays[name][row])}" if name not in WORDS else "without offset, nbytes or crc32c"
            extra = f" of {int(arrays['parts'][row])} parts" if name == "part" else ""
            raise RunCorrupt(
                f"{file.index_key}: row {row} has {name} {got}{extra}, which is invalid in this file"
            )
