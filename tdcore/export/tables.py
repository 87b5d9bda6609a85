"""CSV and Parquet: a folder with the tables statistics, texts and parameters.

CSV has NaN and infinities as `nan`, `inf` and `-inf`, and a histogram as its counts with spaces between them.
Threads: one thread per object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from tdcore.export.source import COLUMNS
from tdcore.format.layout import index_schema

if TYPE_CHECKING:
    from tdcore.export.source import Parameter, Part, Selection, Text

__all__ = ["SCHEMAS", "TableTarget", "TableWriter", "open_target"]

_FLOATS = ("std", "l1", "l2")  # of Trial.stats(), in addition to the columns of the index


def _statistics_schema() -> pa.Schema:
    """The columns of the table `statistics`; texts are plain, because readers differ in dictionaries."""
    fields = []
    for name in COLUMNS:
        kind = pa.float64() if name in _FLOATS else index_schema().field(name).type
        fields.append((name, kind.value_type if pa.types.is_dictionary(kind) else kind))
    fields += [("value", pa.float64()), ("non_finite", pa.int64()), ("run_id", pa.string())]
    return pa.schema(fields)


SCHEMAS = {
    "statistics": _statistics_schema(),
    "texts": pa.schema(
        [
            *((name, pa.string()) for name in ("kind", "name", "text", "severity")),
            *(("attempt", pa.int64()), ("worker", pa.string()), ("mode", pa.string())),
            *(("mode_step", pa.int64()), ("step", pa.int64()), ("document", pa.string())),
        ]
    ),
    "parameters": pa.schema(
        [("attempt", pa.int64()), *((name, pa.string()) for name in ("worker", "name", "value"))]
    ),
}


class TableWriter(Protocol):
    """Appends to one of the tables of SCHEMAS."""

    def write_table(self, table: pa.Table) -> None:
        """Append the rows."""
        ...


class TableTarget:
    """Three tables. writers: of the tables in SCHEMAS."""

    def __init__(self, writers: Mapping[str, TableWriter], selection: Selection) -> None:
        self._writers = writers
        self._histograms = selection.histograms
        self._part: Part | None = None

    def begin(self, part: Part, parameters: Mapping[str, Parameter]) -> None:
        """See Target.begin."""
        self._part = part
        rows = [
            {
                "attempt": part.attempt,
                "worker": part.worker,
                "name": name,
                "value": str(value),
            }
            for name, value in parameters.items()
        ]
        self._write("parameters", rows)

    def write(self, batch: pa.Table) -> int:
        """See Target.write. The table has all rows, also rows without statistics, with their reasons."""
        assert self._part is not None
        schema = SCHEMAS["statistics"]
        ids = pa.array([self._part.run_id] * batch.num_rows, pa.string())
        table = batch.append_column("run_id", ids).select(schema.names)
        if not self._histograms:
            for name in ("log2_first", "log2_counts"):
                at = schema.get_field_index(name)
                table = table.set_column(at, name, pa.nulls(batch.num_rows, schema.field(name).type))
        self._writers["statistics"].write_table(table.cast(schema))
        return int(batch.num_rows - batch["count"].null_count)

    def end(self, texts: Sequence[Text]) -> None:
        """See Target.end."""
        rows = []
        for text in texts:
            row = {name: getattr(text, name) for name in SCHEMAS["texts"].names}
            row["document"] = None if text.document is None else json.dumps(text.document, default=str)
            rows.append(row)
        self._write("texts", rows)

    def _write(self, name: str, rows: list[dict[str, Any]]) -> None:
        self._writers[name].write_table(pa.Table.from_pylist(rows, SCHEMAS[name]))


class _CsvWriter:
    """A CSV file, with a histogram as text."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        fields = [
            pa.field(each.name, pa.string()) if pa.types.is_list(each.type) else each for each in schema
        ]
        self._writer = csv.CSVWriter(path, pa.schema(fields))

    def write_table(self, table: pa.Table) -> None:
        """Append the rows."""
        for at, field in enumerate(table.schema):
            if pa.types.is_list(field.type):
                texts = pc.binary_join(table.column(at).cast(pa.list_(pa.string())), " ")
                table = table.set_column(at, field.name, texts)
        self._writer.write_table(table)

    def close(self) -> None:
        """Complete the file."""
        self._writer.close()


@contextmanager
def open_target(place: Path, selection: Selection, name: str) -> Iterator[TableTarget]:
    """See tdcore.export.target.open_target. name: "csv" or "parquet"."""
    with ExitStack() as stack:
        writers: dict[str, TableWriter] = {}
        for table, schema in SCHEMAS.items():
            path = place / f"{table}.{name}"
            writer: Any = (
                _CsvWriter(path, schema)
                if name == "csv"
                else pq.ParquetWriter(path, schema, compression="zstd")
            )
            stack.callback(writer.close)
            writers[table] = writer
        yield TableTarget(writers, selection)
