"""Column: a narrow column of an index, whose values are read when they are needed. Threads: see RowStore."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Column"]


class _Store(Protocol):
    """The rows of an index; see RowColumns."""

    def __len__(self) -> int: ...

    def narrow(self, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]: ...


class Column:
    """A narrow column: column[rows] are its values at these rows, np.asarray(column) those of all rows.

    Texts are codes of the dictionary of the column.
    """

    __slots__ = ("_name", "_store")

    def __init__(self, store: _Store, name: str) -> None:
        self._store = store
        self._name = name

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, rows: Any) -> Any:
        """Values at an array of rows, a mask, a slice or one row."""
        if isinstance(rows, int | np.integer):
            return self._store.narrow(self._name, np.array([rows], dtype=np.int64))[0]
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)), dtype=np.int64)
        rows = np.asarray(rows)
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        if rows.ndim == 1 and rows.dtype == np.int64:
            return self._store.narrow(self._name, rows)  # the same array, because its places are kept
        flat = self._store.narrow(self._name, np.ravel(rows).astype(np.int64, copy=False))
        return flat.reshape(rows.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        found = self[:]
        return np.asarray(found if dtype is None else found.astype(dtype))

    def min(self) -> Any:
        """The smallest value."""
        return np.asarray(self).min()

    def tolist(self) -> list[Any]:
        """All values."""
        return list(np.asarray(self).tolist())
