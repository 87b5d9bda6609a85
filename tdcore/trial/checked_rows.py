"""CheckedRows: columns of row groups of a file that has a catalogue. The catalogue must describe the rows.

Threads: one reader, whose threads use different objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import pyarrow as pa

from tdcore.errors import RunCorrupt
from tdcore.format import layout
from tdcore.format.catalogue import CatalogueCheck
from tdcore.trial.parquet_file import RowGroups

__all__ = ["CheckedRows"]


class CheckedRows:
    """Columns of row groups, whose steps and names are compared with the catalogue at the first read.

    They are not decoded if the catalogue has a seal of their bytes.

    Args:
        piece: The row groups.
        file: Their file.
        check: Compares rows with the catalogue.
        check_home: Raises RunCorrupt unless the columns attempt and worker of a table are those of the file.
    """

    def __init__(
        self,
        piece: RowGroups,
        file: layout.FileRange,
        check: CatalogueCheck,
        check_home: Callable[[pa.Table], object],
    ) -> None:
        self._piece = piece
        self._file = file
        self._check: CatalogueCheck | None = check
        self._check_home = check_home
        self._constants: dict[str, int] = {}

    def confirm(self) -> None:
        """Verify that the catalogue describes the rows. Raises RunCorrupt."""
        check = self._check
        if check is None:
            return
        if not self._is_sealed(check):
            self._compare(check, ())
        self._check = None

    def read(self, names: Sequence[str]) -> pa.Table:
        """Columns of all rows. Raises RunCorrupt."""
        check = self._check
        if check is not None:
            if not self._is_sealed(check):
                return self._compare(check, names).select(names)
            self._check = None
        lacking = [name for name in names if name not in self._constants]
        table = self._piece.read(lacking) if lacking else None
        if table is not None and len(lacking) == len(names):
            return table
        return self._with_constants(table, names)

    def _is_sealed(self, check: CatalogueCheck) -> bool:
        seal, file = check.seal, self._file
        if seal is None or (seal.worker, seal.attempt) != (file.worker, file.attempt):
            return False
        constants = self._piece.constants(seal)
        self._constants = constants or {}
        return constants is not None

    def _compare(self, check: CatalogueCheck, names: Sequence[str]) -> pa.Table:
        """Compare the rows with the catalogue. Returns a table with the columns `names`, and others."""
        table = self._piece.read(list(dict.fromkeys([*names, "attempt", "worker", *CatalogueCheck.columns])))
        self._check_home(table.select(["attempt", "worker"]))
        try:
            check.check(table, self._piece.first)
        except ValueError as error:
            raise RunCorrupt(f"{self._file.index_key} is damaged: {error}; restore it from a copy") from error
        self._check = None
        return table

    def _with_constants(self, table: pa.Table | None, names: Sequence[str]) -> pa.Table:
        schema = layout.index_schema()
        columns = [
            _repeated(self._constants[name], schema.field(name).type, self._piece.rows)
            if table is None or name in self._constants
            else table.column(name)
            for name in names
        ]
        return pa.table(columns, schema=pa.schema([schema.field(name) for name in names]))


@lru_cache(maxsize=16)  # row groups have few different sizes
def _repeated(value: int, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)
