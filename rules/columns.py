"""Columns: the columns of a table of rows as NumPy arrays.

An array is computed once and is read-only. One thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.rules.measures.histogram import Histograms

__all__ = ["Columns", "Floats", "Ints", "Mask"]

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Columns:
    """The columns of a table of index rows as NumPy arrays, shared by all rules.

    Each column is converted once. The arrays are read-only.

    Args:
        table: Rows with the columns of the index. Parts of one tensor are already merged.
    """

    __slots__ = ("_cache", "_codes", "_shared", "table")

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._cache: dict[str, npt.NDArray[Any]] = {}
        self._codes: dict[str, tuple[npt.NDArray[np.int64], list[str | None]]] = {}
        self._shared: dict[tuple[object, ...], npt.NDArray[Any]] = {}

    def shared(self, key: tuple[object, ...], make: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """The result of `make`, computed once per `key` for all rules, and read-only."""
        if key not in self._shared:
            made = make()
            made.flags.writeable = False
            self._shared[key] = made
        return self._shared[key]

    def floats(self, name: str) -> Floats:
        """A number column as float64; null becomes NaN."""
        key = "f:" + name
        if key not in self._cache:
            column = self.table.column(name)
            if column.null_count:
                column = column.cast(pa.float64(), safe=False)  # large integers are rounded
            self._cache[key] = np.asarray(column.to_numpy(), dtype=np.float64)
        return self._cache[key]

    def ints(self, name: str) -> Ints:
        """An integer column as int64; null becomes 0."""
        key = "i:" + name
        if key not in self._cache:
            column = self.table.column(name)
            if column.null_count:
                column = column.cast(pa.int64()).fill_null(0)
            self._cache[key] = np.asarray(column.to_numpy(), dtype=np.int64)
        return self._cache[key]

    @property
    def own_steps(self) -> Ints:
        """Global steps in each worker's own numbers, which grow with time on that worker.

        The column `step` has the numbers of the first worker by rank instead. Their order may differ from the
        order of another worker's steps.
        """
        if "own" not in self._cache:  # column_names is a new list at each use
            self._cache["own"] = self.ints("own_step" if "own_step" in self.table.column_names else "step")
        return self._cache["own"]

    def present(self, name: str) -> Mask:
        """Mask of the rows whose value in a column is not null."""
        key = "p:" + name
        if key not in self._cache:
            column = self.table.column(name)
            if column.null_count == 0:
                self._cache[key] = np.ones(len(column), dtype=np.bool_)
            else:
                self._cache[key] = np.asarray(column.is_valid().to_numpy(), dtype=np.bool_)
        return self._cache[key]

    def codes(self, name: str) -> tuple[Ints, list[str | None]]:
        """Return (codes, texts) of a text column: the text of row i is texts[codes[i]].

        The texts are distinct. Null becomes None, the last entry of texts.
        """
        if name not in self._codes:
            column = self.table.column(name)
            if not pa.types.is_dictionary(column.type):
                column = column.dictionary_encode()
            column = column.unify_dictionaries().combine_chunks()
            array = column.chunk(0) if isinstance(column, pa.ChunkedArray) and column.num_chunks else column
            if isinstance(array, pa.ChunkedArray):  # no rows at all
                self._codes[name] = (np.empty(0, dtype=np.int64), [None])
            else:
                texts: list[str | None] = [*array.dictionary.to_pylist(), None]
                indices = array.indices
                if indices.null_count:
                    indices = indices.cast(pa.int64()).fill_null(len(texts) - 1)
                self._codes[name] = (np.asarray(indices.to_numpy(), dtype=np.int64), texts)
        return self._codes[name]

    def texts(self, name: str) -> list[str]:
        """The distinct texts of a column."""
        return [text for text in self.codes(name)[1] if text is not None]

    def where(self, name: str, test: Callable[[str], bool]) -> Mask:
        """Mask of the rows whose text in column `name` passes `test`, which is called once per distinct text.

        Null never passes.
        """
        codes, texts = self.codes(name)
        passes = np.fromiter((text is not None and test(text) for text in texts), np.bool_, len(texts))
        return passes[codes]

    def histograms(self, rows: Ints) -> Histograms:
        """Histograms of the magnitudes of these rows; needs the columns log2_first and log2_counts."""
        return Histograms.of(self.table, rows)

    def text(self, name: str, row: int) -> str:
        """The text at one row; null becomes ""."""
        codes, texts = self.codes(name)
        return texts[int(codes[row])] or ""
