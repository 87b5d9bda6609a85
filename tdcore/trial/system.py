"""read_system: the samples of the machine and the trainer's processes as one Arrow table.

Threads: see Trial; no state.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tdcore.errors import RunCorrupt, SinkKeyError
from tdcore.format.layout import FileRange, live_ranges
from tdcore.format.system import SYSTEM_PREFIX, parse_system_key, system_key, system_schema
from tdcore.sinks.base import Sink, announce
from tdcore.trial.index_file import LIMITS, check_run, check_size, reading

__all__ = ["open_samples", "read_system"]

_TRIES = 5  # files are merged while they are read


def read_system(sink: Sink, run_id: str, attempts: Sequence[int], workers: Sequence[str] | None) -> pa.Table:
    """Samples of these attempts and workers (None: all workers), sorted by time.

    Raises:
        RunCorrupt: A file is damaged, or is of another run than `run_id`.
        SinkError: A file cannot be read.
    """
    for left in reversed(range(_TRIES)):
        files = _live(sink, attempts, workers)
        announce(sink, list(files))
        try:
            tables = [_table(sink.get(key), key, place, run_id) for key, place in files.items()]
            break
        except SinkKeyError:
            if not left:
                raise
    table = pa.concat_tables([system_schema().empty_table(), *tables]).unify_dictionaries()
    return table.take(pc.sort_indices(table, [("time_ns", "ascending"), ("sample", "ascending")]))


def _live(sink: Sink, attempts: Sequence[int], workers: Sequence[str] | None) -> dict[str, FileRange]:
    hosts: dict[str, list[FileRange]] = {}
    for key in sink.list(SYSTEM_PREFIX):
        parsed = parse_system_key(key)
        if parsed is None:
            continue
        host, place = parsed
        if place.attempt in attempts and (workers is None or place.worker in workers):
            hosts.setdefault(host, []).append(place)
    return {system_key(host, place): place for host, places in hosts.items() for place in live_ranges(places)}


def open_samples(data: bytes, key: str, place: FileRange, run_id: str) -> pq.ParquetFile:
    """Open a file of samples.

    Args:
        data: Contents of the file.
        key: Key of the file, for messages.
        place: Worker, attempt and range of samples, from the key.
        run_id: Id of the run.

    Raises:
        RunCorrupt: The file is damaged, or is of another run.
    """
    with reading(key, "opening"):
        parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True, **LIMITS)
    check_size(parquet, key, len(data))
    check_run(key, parquet.metadata.metadata, run_id)
    if parquet.metadata.num_rows != place.last - place.first + 1:
        raise RunCorrupt(f"{key} has {parquet.metadata.num_rows} samples, and not those of its name")
    return parquet


def _table(data: bytes, key: str, place: FileRange, run_id: str) -> pa.Table:
    """The samples of one file. Columns of newer versions are left out."""
    schema = system_schema()
    parquet = open_samples(data, key, place, run_id)
    with reading(key, "reading"):
        return parquet.read(columns=schema.names).select(schema.names).cast(schema)
