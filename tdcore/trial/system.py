"""read_system: the samples of the machine and the trainer's processes as one Arrow table.

Threads: those of Trial; no state.
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

__all__ = ["read_system"]

_TRIES = 5  # files are merged while they are read


def read_system(sink: Sink, attempts: Sequence[int], workers: Sequence[str] | None) -> pa.Table:
    """Samples of these attempts, sorted by time. workers: None: all. Raises RunCorrupt, SinkError."""
    for left in reversed(range(_TRIES)):
        keys = _live(sink, attempts, workers)
        announce(sink, keys)
        try:
            tables = [_table(sink.get(key), key) for key in keys]
            break
        except SinkKeyError:
            if not left:
                raise
    table = pa.concat_tables([system_schema().empty_table(), *tables]).unify_dictionaries()
    return table.take(pc.sort_indices(table, [("time_ns", "ascending"), ("sample", "ascending")]))


def _live(sink: Sink, attempts: Sequence[int], workers: Sequence[str] | None) -> list[str]:
    hosts: dict[str, list[FileRange]] = {}
    for key in sink.list(SYSTEM_PREFIX):
        parsed = parse_system_key(key)
        if parsed is None:
            continue
        host, place = parsed
        if place.attempt in attempts and (workers is None or place.worker in workers):
            hosts.setdefault(host, []).append(place)
    return [system_key(host, place) for host, places in hosts.items() for place in live_ranges(places)]


def _table(data: bytes, key: str) -> pa.Table:
    """The samples of one file. Columns of newer versions are left out."""
    schema = system_schema()
    try:
        table = pq.read_table(pa.BufferReader(data))
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise RunCorrupt(f"{key} is not a file of system metrics: {error}") from error
