"""Samples as Parquet files, and merges of such files. Functions without state; any thread."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tdcore.format.layout import FileRange
from tdcore.format.system import system_schema

__all__ = ["merged", "to_parquet"]


def to_parquet(rows: list[dict[str, Any]], place: FileRange, host: str) -> memoryview:
    """A file of samples. place: worker, attempt and number of the first sample."""
    schema = system_schema()
    known = {
        "attempt": [place.attempt] * len(rows),
        "worker": [place.worker] * len(rows),
        "host": [host] * len(rows),
        "sample": range(place.first, place.first + len(rows)),
    }
    columns = {}
    for field in schema:
        values = known.get(field.name) or [row.get(field.name) for row in rows]
        columns[field.name] = pa.array(values, type=_plain(field.type))
    return _file(pa.table(columns).cast(schema))


def merged(files: list[bytes]) -> memoryview:
    """One file with the samples of several."""
    tables = [pq.read_table(pa.BufferReader(file), schema=system_schema()) for file in files]
    return _file(pa.concat_tables(tables).unify_dictionaries())


def _file(table: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return memoryview(sink.getvalue())


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
