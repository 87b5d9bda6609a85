"""Blocks of a history: one statistic of the rows of many tensors, in blocks of whole steps.

Rows of plain steps are taken as they are, see merge_blocks.py. Threads: see Trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.trial.merge_blocks import plain_rows
from tdcore.trial.step_blocks import step_blocks

if TYPE_CHECKING:
    from tdcore.trial.reader import Reader, Selection

__all__ = ["HISTORY_STATISTICS", "merged_blocks", "plain_blocks"]

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_BLOCK_ROWS = 200_000
_FINITE = ("count", "nan_count", "pos_inf_count", "neg_inf_count")
# Statistic of a history -> the columns of merged statistics that it needs.
HISTORY_STATISTICS: dict[str, tuple[str, ...]] = {
    "mean": ("mean",),
    "std": ("std",),
    "min": ("min",),
    "max": ("max",),
    "l1": ("l1",),
    "l2": ("l2",),
    "abs_mean": ("l1", *_FINITE),
    "abs_max": ("abs_max",),
    "zero_percent": ("zero_count", "count"),
    "nan_count": ("nan_count",),
}


def plain_blocks(
    reader: Reader, selection: Selection, stretches: Mask, statistic: str
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """One statistic of the rows of plain stretches, in the order of the files.

    Yields:
        Arrays with one element per row: name (code), stretch, value, and whether the value is known.
    """
    index = reader.index
    names = list(dict.fromkeys(("count", *HISTORY_STATISTICS[statistic])))
    if not stretches.any():
        return
    for rows, codes, table in plain_rows(reader, selection, stretches, names, ["name"]):
        yield {
            "name": codes["name"],
            "stretch": index.stretches.of(rows).astype(np.int32),
            "value": _values(table, statistic),
            "known": np.asarray(table.column("count").is_valid().to_numpy(), dtype=np.bool_),
        }


def merged_blocks(
    reader: Reader, selection: Selection, stretches: Mask, statistic: str
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """One statistic of the merged rows of some stretches, by global step.

    Yields:
        Arrays with one element per merged row: name (code), mode (code), step, mode_step, value, known.
    """
    for rows in step_blocks(reader, selection, stretches, _BLOCK_ROWS):
        yield _block(reader, rows, statistic)


def _block(reader: Reader, rows: Ints, statistic: str) -> dict[str, npt.NDArray[Any]]:
    """Identification and statistic of the merged rows of one block, in order; see merged_blocks."""
    needed = HISTORY_STATISTICS[statistic]
    names = dict.fromkeys(("name", "step", "mode", "mode_step", "count", *needed))
    table = reader.merged(rows, list(names))
    known = np.asarray(table.column("count").is_valid().to_numpy(), dtype=np.bool_)
    return {
        "name": _codes(reader, "name", table),
        "mode": _codes(reader, "mode", table).astype(np.int8),
        "step": np.asarray(table.column("step").to_numpy()),
        "mode_step": np.asarray(table.column("mode_step").to_numpy()),
        "value": _values(table, statistic),
        "known": known,
    }


def _codes(reader: Reader, name: str, table: pa.Table) -> npt.NDArray[np.int32]:
    """A text column as codes of the dictionary of the index."""
    column = table.column(name).unify_dictionaries()
    parts = [np.empty(0, dtype=np.int32)]
    for chunk in column.chunks:
        codes = reader.index.dictionaries[name].codes(chunk.dictionary.to_pylist()).astype(np.int32)
        parts.append(codes[chunk.indices.to_numpy(zero_copy_only=False)])
    return np.concatenate(parts)


def _values(table: pa.Table, statistic: str) -> Floats:
    """The statistic of each row; any number without statistics."""

    def floats(name: str) -> Floats:
        column = table.column(name).cast(pa.float64(), safe=False)
        column = column.fill_null(0.0) if column.null_count else column
        return np.asarray(column.to_numpy(), dtype=np.float64)

    with np.errstate(all="ignore"):
        if statistic == "abs_mean":
            count, *others = (floats(name) for name in _FINITE)
            finite = count - others[0] - (others[1] + others[2])
            return np.where(finite != 0, floats("l1") / finite, math.nan)
        if statistic == "zero_percent":
            count = floats("count")
            return np.where(count != 0, 100 * floats("zero_count") / count, math.nan)
    return floats(statistic)
