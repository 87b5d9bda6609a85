"""Samples as Parquet files, and merges of such files. Functions without state; any thread."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tdcore.format.layout import SUMMARY_KEY, FileRange
from tdcore.format.system import system_schema

__all__ = ["merged", "to_parquet"]


def to_parquet(rows: list[dict[str, Any]], place: FileRange, host: str, run_id: str) -> memoryview:
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
    return _file(pa.table(columns).cast(schema), run_id)


def merged(files: list[bytes], run_id: str) -> memoryview:
    """One file with the samples of several."""
    tables = [pq.read_table(pa.BufferReader(file), schema=system_schema()) for file in files]
    return _file(pa.concat_tables(tables).unify_dictionaries(), run_id)


def _file(table: pa.Table, run_id: str) -> memoryview:
    table = table.replace_schema_metadata({SUMMARY_KEY: json.dumps({"run_id": run_id})})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return memoryview(sink.getvalue())


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
