"""Reading of Parquet files with numbered rows: samples of the machine, and times of steps.

read_rows returns all rows as one Arrow table. NewRows returns the rows that were written since its last call.
Threads: see Trial; NewRows belongs to one source of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tdcore.errors import RunCorrupt, SinkError, SinkKeyError
from tdcore.format.layout import FileRange, live_ranges
from tdcore.format.row_files import RowFiles
from tdcore.sinks.base import Sink, announce
from tdcore.trial.parquet_file import LIMITS, check_run, check_size, reading

__all__ = ["NewRows", "read_rows"]

_TRIES = 5  # files are merged while they are read
_ROWS = 8192  # of one table
_MAX_REMARKS = 20
Home = tuple[str, str, int]  # folder (the host, or ""), worker and attempt


def read_rows(
    files: RowFiles, sink: Sink, run_id: str, attempts: Sequence[int], workers: Sequence[str] | None
) -> pa.Table:
    """Rows of these attempts and workers (None: all workers), sorted by time.

    Raises:
        RunCorrupt: A file is damaged, or is of another run than `run_id`.
        SinkError: A file cannot be read.
    """

    def wanted(place: FileRange) -> bool:
        return place.attempt in attempts and (workers is None or place.worker in workers)

    for left in reversed(range(_TRIES)):
        found = _live(files, sink, wanted)
        announce(sink, [files.key(*each) for each in found])
        try:
            tables = list(_tables(files, sink, found, run_id))
            break
        except SinkKeyError:
            if not left:
                raise
    table = pa.concat_tables([files.schema().empty_table(), *tables]).unify_dictionaries()
    return table.take(pc.sort_indices(table, [("time_ns", "ascending"), (files.number, "ascending")]))


def _live(files: RowFiles, sink: Sink, wanted: Callable[[FileRange], bool]) -> list[tuple[str, FileRange]]:
    """Folders and ranges of the files to read, in order of rows for each worker."""
    folders: dict[str, list[FileRange]] = {}
    for key in sink.list(files.prefix):
        parsed = files.parse(key)
        if parsed is not None and wanted(parsed[1]):
            folders.setdefault(parsed[0], []).append(parsed[1])
    return [(folder, place) for folder, places in sorted(folders.items()) for place in live_ranges(places)]


def _tables(
    files: RowFiles, sink: Sink, found: Sequence[tuple[str, FileRange]], run_id: str
) -> Iterator[pa.Table]:
    """The rows of the files, without rows that an earlier file has."""
    following: dict[Home, int] = {}
    for folder, place in found:
        home = (folder, place.worker, place.attempt)
        table = _table(files, sink, folder, place, run_id)
        yield table.slice(max(0, following.get(home, 0) - place.first))
        following[home] = place.last + 1


def _open(data: bytes, key: str, place: FileRange, run_id: str) -> pq.ParquetFile:
    """Open a file; raises RunCorrupt if it is damaged, or is of another run."""
    with reading(key, "opening"):
        parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True, **LIMITS)
    check_size(parquet, key, len(data))
    check_run(key, parquet.metadata.metadata, run_id)
    if parquet.metadata.num_rows != place.last - place.first + 1:
        raise RunCorrupt(f"{key} has {parquet.metadata.num_rows} rows, and not those of its name")
    return parquet


def _table(files: RowFiles, sink: Sink, folder: str, place: FileRange, run_id: str) -> pa.Table:
    """The rows of one file. Columns of newer versions are left out."""
    key = files.key(folder, place)
    parquet = _open(sink.get(key), key, place, run_id)
    with reading(key, "reading"):
        table = _of_schema(parquet.read(columns=files.schema().names), files.schema())
        _check(files, table, key, folder, place, place.first)
        return table


def _check(files: RowFiles, table: pa.Table, key: str, folder: str, place: FileRange, first: int) -> None:
    """Raise RunCorrupt if rows contradict the key of their file, or have impossible values.

    first: Number of the first of these rows.
    """

    def fail(name: str, value: object) -> None:
        raise RunCorrupt(f"{key}: the column {name} has the value {repr(value)[:100]}, which is impossible")

    names = {**files.names, "worker": frozenset([place.worker])}
    if files.has_folders:
        names["host"] = frozenset([folder])
    for name, possible in names.items():
        for value in pc.unique(table[name].cast(pa.string())).to_pylist():
            if value not in possible:
                fail(name, value)
    numbers = pa.array(np.arange(first, first + len(table)))
    expected = {"attempt": pa.scalar(place.attempt), files.number: numbers}
    for name, values in expected.items():
        other = table[name].filter(pc.not_equal(table[name], values))
        if len(other):
            fail(name, other[0].as_py())
    for name, limit in files.limits.items():
        ends = pc.min_max(table[name]).as_py()
        if ends["min"] is not None and ends["min"] < 0:
            fail(name, ends["min"])
        if ends["max"] is not None and ends["max"] >= limit:
            fail(name, ends["max"])
    for name in files.sums:
        total = pc.sum(table[name].cast(pa.float64(), safe=False)).as_py()
        if total is not None and total >= files.limits[name]:
            raise RunCorrupt(f"{key}: the column {name} has the sum {total:.3g}, which is impossible")


def _of_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of the schema. Optional columns that an older version did not write are null."""
    for field in schema:
        if field.nullable and field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(schema.names).cast(schema)


class NewRows:
    """Reads the rows of one run that were written since the last call.

    A run that is still written has many small files, which the flusher merges meanwhile. For each worker and
    attempt of a host, the reader keeps the number of the last row that it has returned, so its memory is
    small. Large files are returned in parts.
    """

    def __init__(self, files: RowFiles, sink: Sink) -> None:
        self.remarks: list[str] = []  # sentences about files that cannot be read
        self._files = files
        self._sink = sink
        self._next: dict[Home, int] = {}  # number of the first row that was not returned

    def position(self) -> dict[Home, int]:
        """State that a later reader of the same run needs; see `resume`."""
        return dict(self._next)

    def resume(self, position: Mapping[Home, int]) -> None:
        """Continue at the `position` of another reader."""
        self._next = dict(position)

    def read(self, run_id: str, wanted: Callable[[int], bool]) -> Iterator[pa.Table]:
        """The new rows as tables of a limited size, those of each worker in order.

        A file that cannot be read adds a sentence to `remarks`. A damaged file is left out; after another
        error the next call continues at this file.

        Args:
            run_id: Id of the run.
            wanted: Whether the rows of an attempt are read.
        """
        what = self._files.what
        try:
            for _ in range(_TRIES):
                with suppress(SinkKeyError):  # a file was merged meanwhile
                    for folder, place in self._unread(wanted):
                        yield from self._file(folder, place, run_id)
                    return
            self._remark(f"{what} could not be read: their files changed during each attempt")
        except SinkError as error:
            self._remark(f"{what} could not be read: {error}")

    def _unread(self, wanted: Callable[[int], bool]) -> list[tuple[str, FileRange]]:
        return [
            (folder, place)
            for folder, place in _live(self._files, self._sink, lambda place: wanted(place.attempt))
            if place.last >= self._next.get((folder, place.worker, place.attempt), 0)
        ]

    def _file(self, folder: str, place: FileRange, run_id: str) -> Iterator[pa.Table]:
        key, home = self._files.key(folder, place), (folder, place.worker, place.attempt)
        data, schema, first = self._sink.get(key), self._files.schema(), place.first
        try:
            parquet = _open(data, key, place, run_id)
            with reading(key, "reading"):
                batches = parquet.iter_batches(_ROWS, columns=schema.names)
            while True:
                with reading(key, "reading"):
                    batch = next(batches, None)
                    if batch is None:
                        break
                    table = _of_schema(pa.Table.from_batches([batch]), schema)
                    _check(self._files, table, key, folder, place, first)
                    first += len(table)
                    new = table.filter(pc.greater_equal(table[self._files.number], self._next.get(home, 0)))
                if new.num_rows:
                    self._next[home] = new[self._files.number][-1].as_py() + 1
                    yield new
        except RunCorrupt as error:
            self._remark(f"{self._files.what} are left out: {error}")
        self._next[home] = place.last + 1

    def _remark(self, text: str) -> None:
        if text not in self.remarks and len(self.remarks) < _MAX_REMARKS:
            self.remarks.append(text)
