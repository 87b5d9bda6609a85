"""Overviews: for each tensor its last row and the history of one statistic, for `tdcore show`.

The rows are read in blocks of whole steps, so the memory is limited by the histories (about 30 bytes per row)
and one block. If a step is plain (Catalogue.plain) and of one worker, each row of it is a merged row, so the
columns are taken as they are. Threads: see Trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.modes import ModeKeys
from tdcore.trial.merge_stats import merged_sources
from tdcore.trial.statistics import DERIVED, derived_columns, merged_columns
from tdcore.trial.step_blocks import step_blocks

if TYPE_CHECKING:
    from tdcore.trial.reader import Reader

__all__ = ["HISTORY_STATISTICS", "Overview", "overviews"]

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_BLOCK_ROWS = 200_000
_TEXTS = ("shape", "shard", "status", "reason")  # columns of merged statistics that a history does not need
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One tensor at all steps, in the order of its merged statistics (Trial.stats(merged=True)).

    Attributes:
        last: The last row, by column.
        history: The statistic at each row; NaN is a value, and `known` is False where there is none.
        known: Whether the row has statistics.
        steps, mode_steps: Global step, and step of the mode, of each row.
        modes: Mode of each row, as text.
    """

    last: Mapping[str, Any]
    history: Floats
    known: npt.NDArray[np.bool_]
    steps: Ints
    mode_steps: Ints
    modes: Sequence[str]

    def values(self) -> list[float | None]:
        """The history as numbers; None without statistics."""
        found: list[float | None] = self.history.tolist()
        if not self.known.all():
            for at in np.flatnonzero(~self.known).tolist():
                found[at] = None
        return found

    def means(self, width: int) -> list[float | None]:
        """The means of the finite values in at most `width` equal shares of the history, in order.

        A share without a finite value is None. A history of at most `width` values is returned unchanged.
        """
        size = len(self.history)
        if size <= width:
            return self.values()
        starts = np.array([at * size // width for at in range(width)])
        usable = self.known & np.isfinite(self.history)
        with np.errstate(all="ignore"):
            sums = np.add.reduceat(np.where(usable, self.history, 0.0), starts)
            means = sums / np.add.reduceat(usable.astype(np.int64), starts)
        return [None if math.isnan(mean) else mean for mean in means.tolist()]


def overviews(
    reader: Reader, names: Iterable[str], step: int | None, mode: ModeKeys | None, statistic: str
) -> dict[str, Overview]:
    """Tensor -> its overview; tensors without rows are left out.

    Args:
        reader: The run, as of its last refresh.
        names: Names of tensors.
        step: Only this step, of `mode` if it is given; None: all steps.
        mode: Only this mode.
        statistic: A key of HISTORY_STATISTICS.
    """
    index = reader.index
    dictionary = index.dictionaries["name"]
    codes = [dictionary.code(name) for name in names]
    chosen = reader.chosen(step, mode)
    plain = chosen & _plain_stretches(reader, chosen)
    blocks = list(_plain_blocks(reader, codes, plain, statistic))
    blocks += [
        _block(reader, rows, statistic) for rows in _blocks(reader, codes, chosen & ~plain, step, mode)
    ]
    if not sum(len(block["name"]) for block in blocks):
        return {}
    columns = {name: np.concatenate([block.pop(name) for block in blocks]) for name in list(blocks[0])}
    if not bool((columns["step"][1:] >= columns["step"][:-1]).all()):
        by_step = np.argsort(columns["step"], kind="stable")
        columns = {name: column[by_step] for name, column in columns.items()}
    narrow = columns["name"].astype(np.uint16) if len(dictionary) < 1 << 16 else columns["name"]
    order = np.argsort(narrow, kind="stable")
    ordered = columns["name"][order]
    firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
    ends = np.append(firsts[1:], len(order))
    last = _last_rows(reader, columns, order[ends - 1], step, mode)
    texts = index.texts("mode")
    found = {}
    for at, (begin, end) in enumerate(zip(firsts.tolist(), ends.tolist(), strict=True)):
        mine = order[begin:end]
        found[dictionary.texts[int(ordered[begin])]] = Overview(
            last=last[at],
            history=columns["value"][mine],
            known=columns["known"][mine],
            steps=columns["step"][mine],
            mode_steps=columns["mode_step"][mine],
            modes=[texts[code] for code in columns["mode"][mine].tolist()],
        )
    return found


def _plain_stretches(reader: Reader, chosen: Mask) -> Mask:
    """Mask of the stretches of plain files, without steps that have several chosen stretches."""
    index, stretches = reader.index, reader.index.stretches
    found = np.zeros(len(stretches), dtype=np.bool_)
    for each in index.entries:
        if each.plain:
            first, end = np.searchsorted(stretches.first, (each.first, each.end))
            found[first:end] = True
    at = np.flatnonzero(chosen)
    _, number, count = np.unique(stretches.column("step")[at], return_inverse=True, return_counts=True)
    found[at[count[number] > 1]] = False
    return found


def _plain_blocks(
    reader: Reader, names: Sequence[int], stretches: Mask, statistic: str
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Like _block, for the rows of plain stretches."""
    index = reader.index
    if not stretches.any():
        return
    columns = ["count", *HISTORY_STATISTICS[statistic]]
    needed = [name for name in merged_sources(columns) if name not in _TEXTS]
    derived = [name for name in DERIVED if name in columns]
    for rows, codes, table in index.scan({"name": index.among("name", names)}, stretches, (), needed):
        if not len(rows):
            continue
        every, whole = np.arange(len(rows)), np.ones(len(rows), dtype=np.bool_)
        merged = merged_columns(table, every, whole, needed)  # as for several workers, with its rounding
        table = pa.table({name: pa.array(values, mask=null) for name, (values, null) in merged.items()})
        for name, array in derived_columns(derived, table).items():
            table = table.append_column(name, array)
        of_rows = index.stretches.of(rows)
        yield {
            "name": codes["name"],
            **{name: index.stretches.column(name)[of_rows] for name in ("mode", "step", "mode_step")},
            "value": _values(table, statistic),
            "known": np.asarray(table.column("count").is_valid().to_numpy(), dtype=np.bool_),
        }


def _blocks(
    reader: Reader, names: Sequence[int], mask: Mask, step: int | None, mode: ModeKeys | None
) -> Iterator[Ints]:
    """Rows of the tensors in some stretches, in blocks of whole steps, by global step."""
    for rows in step_blocks(reader, {"name": reader.index.among("name", names)}, mask, _BLOCK_ROWS):
        meant = reader.meant(rows, step, mode)
        if len(meant):
            yield meant


def _block(reader: Reader, rows: Ints, statistic: str) -> dict[str, npt.NDArray[Any]]:
    """Identification and statistic of the merged rows of one block, in order."""
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
        column = table.column(name).cast(pa.float64(), safe=False).fill_null(0.0)
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


def _last_rows(
    reader: Reader,
    columns: Mapping[str, npt.NDArray[Any]],
    last: Ints,
    step: int | None,
    mode: ModeKeys | None,
) -> list[dict[str, Any]]:
    """The last merged row of each tensor. last: positions in the columns, one for each tensor."""
    index, names, steps = reader.index, columns["name"][last], columns["step"][last]
    chosen = reader.chosen(step, mode)
    found: dict[int, dict[str, Any]] = {}
    for each in np.unique(steps).tolist():
        of_step = chosen & (index.stretches.column("step") == each)
        rows = index.find({"name": index.among("name", names[steps == each].tolist())}, of_step)
        for row in reader.merged(reader.meant(rows, step, mode)).to_pylist():
            found[index.dictionaries["name"].code(row["name"])] = row
    return [found[code] for code in names.tolist()]
