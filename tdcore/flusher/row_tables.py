"""Numbered rows as Parquet files, and merges of such files. Functions without state; any thread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tdcore.format.layout import SUMMARY_KEY

__all__ = ["merged", "to_parquet"]


def to_parquet(columns: Mapping[str, Sequence[Any]], schema: pa.Schema, run_id: str) -> memoryview:
    """A file with these columns. Columns of the schema without values are null."""
    rows = len(next(iter(columns.values())))
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        arrays.append(pa.nulls(rows, plain) if values is None else pa.array(values, type=plain))
    return _file(pa.table(arrays, names=schema.names).cast(schema), run_id)


def merged(files: list[bytes], schema: pa.Schema, run_id: str) -> memoryview:
    """One file with the rows of several."""
    tables = [pq.read_table(pa.BufferReader(file), schema=schema) for file in files]
    return _file(pa.concat_tables(tables).unify_dictionaries(), run_id)


def _file(table: pa.Table, run_id: str) -> memoryview:
    table = table.replace_schema_metadata({SUMMARY_KEY: json.dumps({"run_id": run_id})})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return memoryview(sink.getvalue())
