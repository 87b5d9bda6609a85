"""Reader of one index file: it opens the file, checks the format, and converts the rows to columns.

There are two groups of columns. NARROW columns identify the row and the place of its payload. They are read
and checked immediately and become NumPy arrays. The other columns (WIDE) are read from the file at their
first use. A large file stays memory-mapped for this purpose, so the file may be deleted in the meantime.
Files are untrusted: every fault raises RunCorrupt with the file's key and the reason. Threads: an object
belongs to one reader.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tdcore.errors import RunCorrupt, SinkKeyError, UnsafeFile
from tdcore.format import layout
from tdcore.format.documents import clipped
from tdcore.sinks.run_folder import RunFolder
from tdcore.trial.chunk import Chunk, whole_column
from tdcore.trial.dictionary import TextDictionaries
from tdcore.trial.index_schema import as_type, check_schema

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["LIMITS", "MODES", "NARROW", "WIDE", "WORDS", "check_run", "check_size", "open_chunks", "reading"]

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

_MAX_ROWS = 1 << 24  # per file
_MAX_FILE_BYTES = 1 << 31
_MAX_EXPANSION = 4096  # bytes in memory per byte of file
_MANY_ROWS = 20_000  # larger files are decoded by several threads
_PIECE_ROWS = 16_384  # minimum number of rows of the pieces of large files
LIMITS: dict[str, Any] = {"thrift_string_size_limit": 64 << 20, "thrift_container_size_limit": 1 << 20}
_MAPPED_BYTES = 1 << 20  # files of at least this size stay mapped; smaller files are read into memory
_MAX_COUNT = 1 << 53
_ANY_SIGN = {"min", "max", "mean", "m2", "log2_first", "log2_counts"}
_NEVER_NEGATIVE = frozenset(layout.STATISTICS_COLUMNS) - _ANY_SIGN
_CORRUPT = (
    pa.ArrowException,
    OSError,
    ValueError,
    MemoryError,
    OverflowError,
    KeyError,
    TypeError,
    AttributeError,
)


@contextmanager
def reading(key: str, what: str) -> Iterator[None]:
    """Convert errors of Parquet and Arrow to RunCorrupt."""
    try:
        yield
    except _CORRUPT as error:
        text = " ".join(str(error).split())
        raise RunCorrupt(
            f"{key} is damaged: {what} failed ({type(error).__name__}: {clipped(text)}); "
            "restore it from a copy, or delete it to read the rest of the run"
        ) from error


def open_chunks(
    sink: Sink,
    root: Path | None,
    file: layout.FileRange,
    wanted: Sequence[tuple[int, int]],
    dictionaries: TextDictionaries,
) -> tuple[list[Chunk], dict[str, npt.NDArray[Any]], dict[bytes, bytes] | None]:
    """Read the narrow columns of one index file.

    Args:
        sink: The run.
        root: Folder of a local run.
        file: The index file.
        wanted: Sorted, inclusive ranges of tickets. Rows of other tickets are left out.
        dictionaries: Dictionaries of the text columns.

    Returns:
        The rows as chunks, the arrays by name, and the metadata.

    Raises:
        SinkKeyError: The file does not exist any more.
        RunCorrupt: The file is invalid.
    """
    key = file.index_key
    source = _source(sink, root, key)
    parquet = _opened(source, key)
    table = _read(parquet, key, list(NARROW))
    arrays = _narrow(table, file, dictionaries)
    tickets = arrays["ticket"]
    keep = np.zeros(len(tickets), dtype=np.bool_)
    for first, last in wanted:
        keep |= (tickets >= first) & (tickets <= last)
    pieces = _pieces(parquet, source, key)
    metadata: dict[bytes, bytes] | None = parquet.metadata.metadata
    if keep.all():
        return [_chunk(piece, None) for piece in pieces], arrays, metadata
    chunks = []
    for piece in pieces:
        rows = np.flatnonzero(keep[piece.first : piece.first + piece.rows])
        if not len(rows):
            continue
        chunks.append(_chunk(piece, rows))
        if 2 * len(rows) < piece.rows:
            chunks[-1].wide(WIDE)  # so that a few rows do not keep a large file open
    return chunks, {name: array[keep] for name, array in arrays.items()}, metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowGroups:
    """Neighbouring row groups of a file: first row, number of rows, and `read` for their columns."""

    first: int
    rows: int
    read: Callable[[Sequence[str]], pa.Table]


def _pieces(parquet: pq.ParquetFile, source: Any, key: str) -> list[_RowGroups]:
    """The file in pieces of at least _PIECE_ROWS rows, each with its own reader, for threads."""
    metadata = parquet.metadata
    pieces: list[_RowGroups] = []
    groups: list[int] = []
    first = rows = 0
    for group in range(metadata.num_row_groups):
        groups.append(group)
        rows += metadata.row_group(group).num_rows
        if rows >= _PIECE_ROWS or group == metadata.num_row_groups - 1:
            read = partial(_read_groups, source, metadata, key, tuple(groups), rows)
            pieces.append(_RowGroups(first=first, rows=rows, read=read))
            first, rows, groups = first + rows, 0, []
    return [piece for piece in pieces if piece.rows]


def _chunk(piece: _RowGroups, rows: Rows | None) -> Chunk:
    """Create a chunk. rows: rows of the piece to keep; None: all rows."""
    level = -1 if piece.rows >= _PIECE_ROWS else 0
    if rows is None or len(rows) == piece.rows:
        return Chunk(piece.rows, piece.read, WIDE, level=level)
    taken = pa.array(rows)
    return Chunk(len(rows), lambda names: piece.read(names).take(taken), WIDE, level=level)


def _read_groups(
    source: Any, metadata: Any, key: str, groups: Sequence[int], rows: int, names: Sequence[str]
) -> pa.Table:
    with reading(key, "opening"):
        parquet = _parquet(source, metadata)
    return _read(parquet, key, names, groups, rows)


def _opened(source: Any, key: str) -> pq.ParquetFile:
    """Open the file and check its footer."""
    with reading(key, "opening"):
        parquet = pq.ParquetFile(source, page_checksum_verification=True, **LIMITS)
    check_size(parquet, key, source.size())
    with reading(key, "reading its schema"):
        schema = parquet.schema_arrow
    check_schema(schema, key)
    with reading(key, "opening"):
        return _parquet(source, parquet.metadata)


def _parquet(source: Any, metadata: Any) -> pq.ParquetFile:
    return pq.ParquetFile(
        source,
        metadata=metadata,
        read_dictionary=_dictionary_columns(),
        page_checksum_verification=True,
        **LIMITS,
    )


def _source(sink: Sink, root: Path | None, key: str) -> Any:
    if root is not None:
        try:
            with RunFolder(root).file(key, limit=_MAX_FILE_BYTES) as descriptor:
                size = os.fstat(descriptor).st_size
                if size >= _MAPPED_BYTES:
                    return pa.BufferReader(pa.py_buffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)))
        except FileNotFoundError as error:
            raise SinkKeyError(f"{key} does not exist any more") from error
        except UnsafeFile:
            raise
        except OSError:
            pass  # the sink raises its own error
    return pa.BufferReader(sink.get(key))


def _dictionary_columns() -> list[str]:
    return [field.name for field in layout.index_schema() if pa.types.is_dictionary(field.type)]


def check_run(key: str, metadata: Mapping[bytes, bytes] | None, run_id: str) -> None:
    """Raise RunCorrupt if the metadata of a file name another run. run_id: "" while it is unknown."""
    said = layout.said_run_id(metadata)
    if said and run_id and said != run_id:
        raise RunCorrupt(
            f"{key} is of run {clipped(said, 64)}, run.json is of {clipped(run_id, 64)}: "
            "it was copied from another run; restore the run's own file, or remove this one"
        )


def check_size(parquet: pq.ParquetFile, key: str, file_bytes: int) -> None:
    """Raise RunCorrupt if the footer of a file names more data than a file of this size can have."""
    with reading(key, "reading its footer"):
        metadata = parquet.metadata
        rows, groups = metadata.num_rows, metadata.num_row_groups
        each = [metadata.row_group(group) for group in range(min(groups, 1 << 16))]
        sizes, counts = [group.total_byte_size for group in each], [group.num_rows for group in each]
    if min(counts, default=0) < 0 or sum(counts) != rows:
        raise RunCorrupt(f"{key} names {rows} rows and {counts[:8]} in its row groups: the file is damaged")
    limit = (64 << 20) + _MAX_EXPANSION * file_bytes
    if not 0 <= rows <= _MAX_ROWS or file_bytes > _MAX_FILE_BYTES or groups > 1 << 16 or sum(sizes) > limit:
        raise RunCorrupt(
            f"{key} names {rows} rows and {sum(sizes)} bytes in {file_bytes} bytes of file; a file "
            f"holds at most {_MAX_ROWS} rows and {limit} bytes: the file is damaged"
        )


def _read(
    parquet: pq.ParquetFile,
    key: str,
    names: Sequence[str],
    groups: Sequence[int] | None = None,
    rows: int | None = None,
) -> pa.Table:
    """Columns, validated, each without chunks and with the type of the format.

    groups: row groups, which must have `rows` rows; None: all row groups.
    """
    schema = layout.index_schema()
    wanted = parquet.metadata.num_rows if rows is None else rows
    with reading(key, "reading"):
        threads = wanted > _MANY_ROWS
        if groups is None:
            table = parquet.read(columns=list(names), use_threads=threads)
        else:
            table = parquet.read_row_groups(list(groups), columns=list(names), use_threads=threads)
        table.validate(full=True)
        if table.num_rows != wanted:
            raise ValueError(f"{table.num_rows} rows found, {wanted} expected")
        columns = []
        for name in names:
            field = schema.field(name)
            column = table.column(name)
            if not field.nullable and column.null_count:
                raise ValueError(f"column {name!r} has {column.null_count} nulls")
            if pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(column.type):
                column = column.dictionary_encode()
            if column.type != field.type:
                column = as_type(column, field.type)
            if name in _NEVER_NEGATIVE:
                _check_statistic(column, name)
            columns.append(whole_column(column))
        return pa.table(columns, schema=pa.schema([schema.field(name) for name in names]))


def _check_statistic(column: pa.ChunkedArray, name: str) -> None:
    """Check that counts and sums of magnitudes are not negative, and that counts are exact as float64."""
    extremes = pc.min_max(column)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    limit = _MAX_COUNT if pa.types.is_integer(column.type) else math.inf
    if low is not None and (low < 0 or high > limit):
        raise ValueError(f"{name} is {low if low < 0 else high}, which no tensor has")


def _narrow(
    table: pa.Table, file: layout.FileRange, dictionaries: TextDictionaries
) -> dict[str, npt.NDArray[Any]]:
    """The narrow columns as NumPy arrays, checked."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, kind in NARROW.items():
        column = table.column(name).chunk(0)
        if name in WORDS:
            words = column.dictionary.to_pylist()
            _check_words(name, words, file)
            codes = np.append(dictionaries[name].codes(words), -1)
            indices = column.indices
            if indices.null_count:
                indices = indices.fill_null(len(words))
            positions = indices.to_numpy(zero_copy_only=False)
            arrays[name] = codes[positions].astype(kind)
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
    """Check the relations within each row that other code needs."""
    no_payload = arrays["segment"] < 0
    whole = np.ones(len(no_payload), dtype=np.bool_)
    for name in ("offset", "nbytes", "crc32c"):
        valid = table.column(name).chunk(0).is_valid().to_numpy(zero_copy_only=False)
        whole &= valid | no_payload
    checks: list[tuple[str, npt.NDArray[np.bool_]]] = [
        ("attempt", arrays["attempt"] == file.attempt),
        ("ticket", (arrays["ticket"] >= file.first) & (arrays["ticket"] <= file.last)),
        ("call", arrays["call"] >= 0),
        ("seq", arrays["seq"] >= 0),
        ("part", (arrays["part"] >= 0) & (arrays["part"] < arrays["parts"])),
        ("segment", whole),
        ("offset", (arrays["offset"] >= 0) | no_payload),
        ("nbytes", (arrays["nbytes"] >= 0) | no_payload),
    ]
    for name, good in checks:
        if not good.all():
            row = int(np.argmin(good))
            got = f"{int(arrays[name][row])}" if name not in WORDS else "without offset, nbytes or crc32c"
            extra = f" of {int(arrays['parts'][row])} parts" if name == "part" else ""
            raise RunCorrupt(
                f"{file.index_key}: row {row} has {name} {got}{extra}, which is invalid in this file"
            )
