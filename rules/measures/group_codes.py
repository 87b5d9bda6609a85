"""Group codes: one number per row for its combination of values in several columns.

Functions without state; any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tdcore.rules.columns import Columns

__all__ = ["NUMBERS", "dense", "group_codes"]

NUMBERS = frozenset({"attempt", "step", "mode_step", "call", "index"})  # the other columns are text


def group_codes(columns: Columns, rows: npt.NDArray[np.int64], *names: str) -> npt.NDArray[Any]:
    """Per row, a number from 0 for its combination of values; ascending with the values, column by column."""
    if 4 * rows.size < columns.table.num_rows:
        return _group_codes(columns, names, rows)
    return columns.shared(("groups", names), lambda: _group_codes(columns, names, slice(None)))[rows]


def _group_codes(
    columns: Columns, names: tuple[str, ...], rows: npt.NDArray[np.int64] | slice
) -> npt.NDArray[Any]:
    """Group codes, as two-byte integers if they fit, because sorting these takes a quarter of the time."""
    code, size = np.zeros(1, dtype=np.int64), 1
    for name in names:
        part, span = dense((columns.ints(name) if name in NUMBERS else columns.codes(name)[0])[rows])
        code, size = (part, span) if size == 1 else dense(code * span + part) if span > 1 else (code, size)
    return code.astype(np.uint16) if size <= 1 << 16 else code


def dense(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """(position of each value among the distinct values, ascending; number of distinct values).

    values: at least one.
    """
    low, span = int(values.min()), int(values.max()) - int(values.min()) + 1
    if span > 4 * values.size + (1 << 16):
        distinct, inverse = np.unique(values, return_inverse=True)
        return inverse, distinct.size
    if span == 1:
        return np.zeros(values.size, dtype=np.int64), 1
    there = np.zeros(span, dtype=np.bool_)
    there[values - low] = True
    position = np.cumsum(there) - 1
    return position[values - low], int(position[-1]) + 1
