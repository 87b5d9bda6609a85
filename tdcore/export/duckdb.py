"""DuckDB: a database with the tables statistics, texts and parameters.

Threads: one per object.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from tdcore.export.tables import SCHEMAS, TableTarget

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.export.source import Selection

__all__ = ["open_target"]


class _DuckDbTable:
    """One table of a database, which this class creates."""

    def __init__(self, connection: Any, name: str, schema: pa.Schema) -> None:
        self._connection = connection
        self._name = name
        connection.register("rows_to_add", schema.empty_table())
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM rows_to_add")

    def write_table(self, table: pa.Table) -> None:
        """Append the rows."""
        self._connection.register("rows_to_add", table)
        self._connection.execute(f"INSERT INTO {self._name} SELECT * FROM rows_to_add")
        self._connection.unregister("rows_to_add")


@contextmanager
def open_target(place: Path, selection: Selection, name: str) -> Iterator[TableTarget]:
    """See tdcore.export.target.open_target."""
    with closing(duckdb.connect(str(place))) as connection:
        writers = {table: _DuckDbTable(connection, table, schema) for table, schema in SCHEMAS.items()}
        yield TableTarget(writers, selection)
