"""Parquet files of a run: opening, limits, checks of the footer, and reading of columns of row groups.

Files are untrusted: every fault raises RunCorrupt with the file's key and the reason. Threads: an open file
belongs to one reader, which may read several row groups at the same time.
"""

from __future__ import annotations

import math
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tdcore.errors import RunCorrupt, SinkKeyError, UnsafeFile
from tdcore.format import layout
from tdcore.format.documents import clipped
from tdcore.format.seal import Seal, sealed_places
from tdcore.sinks.run_folder import RunFolder
from tdcore.trial.chunk import whole_column
from tdcore.trial.index_schema import as_type, check_schema

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = [
    "LIMITS",
    "RowGroups",
    "Source",
    "check_run",
    "check_size",
    "open_parquet",
    "open_source",
    "pieces_of",
    "read_columns",
    "reading",
]

_MAX_ROWS = 1 << 24  # per file
_MAX_FILE_BYTES = 1 << 31
_MAX_EXPANSION = 4096  # bytes in memory per byte of file
_MANY_ROWS = 20_000  # more rows are decoded by several threads, if they have
_MANY_COLUMNS = 8  # more columns than this; for fewer columns the threads need more CPU time than they save
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The bytes of an index file.

    Attributes:
        file: The bytes, for Parquet readers.
        view: The bytes.
        mapping: Memory map of the file; None if it was read into memory.
        idle: Opened readers of the file that no thread uses now.
    """

    file: pa.BufferReader
    view: memoryview
    mapping: mmap.mmap | None = None
    idle: deque[pq.ParquetFile] = field(default_factory=deque)

    def release(self) -> None:
        """Let the kernel drop the pages of a mapped file from the memory of this process."""
        if self.mapping is not None:
            self.mapping.madvise(mmap.MADV_DONTNEED)


def open_source(sink: Sink, root: Path | None, key: str) -> Source:
    """The bytes of a file; a large local file is mapped. Raises SinkKeyError if it does not exist."""
    if root is not None:
        try:
            with RunFolder(root).file(key, limit=_MAX_FILE_BYTES) as descriptor:
                size = os.fstat(descriptor).st_size
                if size >= _MAPPED_BYTES:
                    mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
                    return _source(mapping, mapping)
        except FileNotFoundError as error:
            raise SinkKeyError(f"{key} does not exist any more") from error
        except UnsafeFile:
            raise
        except OSError:
            pass  # the sink raises its own error
    return _source(sink.get(key))


def _source(data: bytes | mmap.mmap, mapping: mmap.mmap | None = None) -> Source:
    return Source(file=pa.BufferReader(pa.py_buffer(data)), view=memoryview(data), mapping=mapping)


def open_parquet(source: Source, key: str) -> pq.ParquetFile:
    """Open the file and check its footer."""
    with reading(key, "opening"):
        parquet = pq.ParquetFile(source.file, page_checksum_verification=True, **LIMITS)
    check_size(parquet, key, source.file.size())
    with reading(key, "reading its schema"):
        schema = parquet.schema_arrow
    check_schema(schema, key)
    with reading(key, "opening"):
        return _parquet(source, parquet.metadata)


def _parquet(source: Source, metadata: Any) -> pq.ParquetFile:
    return pq.ParquetFile(
        source.file,
        metadata=metadata,
        read_dictionary=_dictionary_columns(),
        page_checksum_verification=True,
        **LIMITS,
    )


def _idle(source: Source) -> pq.ParquetFile | None:
    try:
        return source.idle.pop()
    except IndexError:
        return None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroups:
    """Neighbouring row groups of a file.

    Attributes:
        first, rows: The first row in the file, and the number of rows.
        read: Reads columns of the rows.
        constants: The columns whose values are all equal, from a seal; None if the seal is of other bytes.
    """

    first: int
    rows: int
    read: Callable[[Sequence[str]], pa.Table]
    constants: Callable[[Seal], dict[str, int] | None]


def pieces_of(parquet: pq.ParquetFile, source: Source, key: str) -> list[RowGroups]:
    """The file in pieces of at least _PIECE_ROWS rows, each with its own reader, for threads."""
    metadata = parquet.metadata
    places: dict[str, int] = {}  # of the columns of a seal
    pieces: list[RowGroups] = []
    groups: list[int] = []
    first = rows = 0
    for group in range(metadata.num_row_groups):
        groups.append(group)
        rows += metadata.row_group(group).num_rows
        if rows >= _PIECE_ROWS or group == metadata.num_row_groups - 1:
            read = partial(_read_groups, source, metadata, key, tuple(groups), rows)
            constants = partial(_constants, source, metadata, key, tuple(groups), places)
            pieces.append(RowGroups(first=first, rows=rows, read=read, constants=constants))
            first, rows, groups = first + rows, 0, []
    return [piece for piece in pieces if piece.rows]


def _constants(
    source: Source, metadata: Any, key: str, groups: Sequence[int], places: dict[str, int], seal: Seal
) -> dict[str, int] | None:
    """See RowGroups.constants. places: of the columns of a seal; they are added if there are none."""
    with reading(key, "reading its footer"):
        places.update(places or sealed_places(metadata.schema))
        if not seal.matches(metadata, groups, source.view, places):
            return None
    first, *others = (seal.constants(group) for group in groups)
    return {name: value for name, value in first.items() if all(each.get(name) == value for each in others)}


def _read_groups(
    source: Source, metadata: Any, key: str, groups: Sequence[int], rows: int, names: Sequence[str]
) -> pa.Table:
    with reading(key, "opening"):
        parquet = _idle(source) or _parquet(source, metadata)
    try:
        return read_columns(parquet, key, names, groups, rows)
    finally:
        source.idle.append(parquet)  # opening costs as much as decoding a small column
        source.release()


def read_columns(
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
        threads = wanted > _MANY_ROWS and len(names) > _MANY_COLUMNS
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
