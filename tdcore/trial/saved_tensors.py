"""Saved tensors: the first row of each tensor with a value, and the number of its saved steps.

The catalogues of large files contain the names and kinds of their rows, so the first rows are searched only
in files that have rows of the remaining tensors. Saved reductions of other tensors are left out. Threads: see
Trial.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.trial.step_blocks import whole_steps

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.trial.reader import Reader

__all__ = ["SavedSteps", "first_saved_rows", "saved_steps"]

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_SAVED = ("ok", "lost")  # statuses of rows with a value, or at least its statistics
_REDUCTION = "reduction"
_FIRST_ROWS = 1 << 16  # searched for the first rows of all tensors, before all other rows
_BLOCK_ROWS = 1 << 20


class SavedSteps(NamedTuple):
    """Number of steps at which a tensor was saved, and whether values were saved and not only statistics."""

    steps: int
    has_values: bool


def first_saved_rows(reader: Reader, columns: Sequence[str]) -> pa.Table:
    """For each tensor, its first row with a value, else its first row; as stored, one row per tensor.

    Args:
        reader: The run, as of its last refresh.
        columns: Names of columns of the index.
    """
    index = reader.index
    saved = _codes(reader, "status", _SAVED)
    entries = [each for each in _entries(reader) if each[1] not in _codes(reader, "kind", (_REDUCTION,))]
    found = np.full(len(index.texts("name")), -1, dtype=np.int64)
    _find_first(reader, {name for name, _, status in entries if status in saved}, saved, found)
    _find_first(reader, {name for name, _, _ in entries if found[name] < 0}, None, found)
    return index.table(np.sort(found[found >= 0]), columns)


def saved_steps(reader: Reader) -> dict[str, SavedSteps]:
    """The saved steps of each tensor. A step is a mode and a step of the mode.

    Four columns of all rows are read, in blocks of whole steps.
    """
    index, texts = reader.index, reader.index.texts("name")
    saved = index.among("status", _codes(reader, "status", _SAVED))
    reductions = index.among("kind", _codes(reader, "kind", (_REDUCTION,)))
    counts = np.zeros(len(texts), dtype=np.int64)
    valued = np.zeros(len(texts), dtype=np.bool_)
    for stretches, step in _blocks(reader):
        rows = index.stretches.rows_of(stretches)
        steps = np.repeat(step, index.stretches.lengths[stretches])
        with index.hold(rows, ("name", "kind", "status", "segment")):
            names = index.narrow("name", rows)
            tensors = ~reductions[index.narrow("kind", rows)]
            valued[names[tensors & (index.narrow("segment", rows) >= 0)]] = True
            rows_with_value = np.flatnonzero(tensors & saved[index.narrow("status", rows)])
        counts += _distinct(names[rows_with_value].astype(np.int64), steps[rows_with_value], len(texts))
    named = dict.fromkeys(name for name, _, _ in _entries(reader))
    return {texts[code]: SavedSteps(int(counts[code]), bool(valued[code])) for code in named}


def _entries(reader: Reader) -> list[tuple[int, ...]]:
    return list(reader.combinations(("name", "kind", "status")))


def _codes(reader: Reader, column: str, texts: Sequence[str]) -> set[int]:
    """The codes of these texts, without texts that do not occur."""
    dictionary = reader.index.dictionaries[column]
    return {code for code in map(dictionary.code, texts) if code >= 0}


def _find_first(reader: Reader, names: set[int], statuses: set[int] | None, found: Ints) -> None:
    """Set `found` to the first row of each of these names. statuses: of the rows; None: all."""
    index, visible = reader.index, reader.view.visible_stretches
    early = visible & (np.cumsum(visible * index.stretches.lengths) <= _FIRST_ROWS)
    for stretches in (early, visible & ~early):
        left = [name for name in names if found[name] < 0]
        if not left or not stretches.any():
            continue
        tests = {"name": index.among("name", left)}
        if statuses is not None:
            tests["status"] = index.among("status", statuses)
        rows = index.find(tests, stretches)
        found[index.narrow("name", rows[::-1])] = rows[::-1]


def _blocks(reader: Reader) -> Iterator[tuple[Ints, Ints]]:
    """Shown stretches in blocks of about a million rows, with the number of the step of each stretch.

    All stretches of a step are in one block.
    """
    stretches, chosen = reader.index.stretches, np.flatnonzero(reader.view.visible_stretches)
    if not len(chosen):
        return
    modes, steps = (stretches.column(name)[chosen] for name in ("mode", "mode_step"))
    order = np.lexsort([chosen, steps, modes])
    chosen, modes, steps = chosen[order], modes[order], steps[order]
    new = np.ones(len(chosen), dtype=np.bool_)
    new[1:] = (modes[1:] != modes[:-1]) | (steps[1:] != steps[:-1])
    number = np.cumsum(new) - 1
    for block in whole_steps(number, stretches.lengths[chosen], _BLOCK_ROWS):
        yield chosen[block], number[block]


def _distinct(names: Ints, steps: Ints, size: int) -> Ints:
    """For each of `size` names, the number of distinct steps."""
    if not len(names):
        return np.zeros(size, dtype=np.int64)
    steps = steps - int(steps.min())
    span = int(steps.max()) + 1
    key = names * span + steps
    if size * span <= 8 * len(key):
        there = np.zeros(size * span, dtype=np.bool_)
        there[key] = True
        return np.asarray(there.reshape(size, span).sum(axis=1), dtype=np.int64)
    return np.bincount(np.unique(key) // span, minlength=size).astype(np.int64)
