"""merged_table: statistics of whole tensors, merged from the statistics of the parts on each worker.

The table has one row per tensor, step and call. Shards of one tensor are merged exactly, up to the rounding
of sums. Shards with equal boxes are copies, and only the first worker's copy is used. Tensors that each
worker has separately (activations, losses) are concatenated. If the statistics of the whole tensor are not
known, the row has status "lost", no statistics, and a reason:

- "incomplete": no worker saved some of the elements.
- "partial": the tensor is a sum over workers; its statistics cannot be computed from the statistics of the
    parts.
- "overlap": parts overlap without being equal.
- "disagree": the parts are of different tensors.

A row with reason "copies_differ" has the statistics of the first worker's copy. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.errors import ConfigError
from tdcore.format import layout
from tdcore.trial.captures import Captures
from tdcore.trial.index import Index
from tdcore.trial.shard_boxes import Box, Shard, UncoveredCells, shard_of
from tdcore.trial.statistics import DERIVED, STATS_COLUMNS, derived_columns, merged_columns, stats_table
from tdcore.trial.worker_order import worker_order

__all__ = ["MERGED_COLUMNS", "checked_columns", "merged_table"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MERGED_COLUMNS = tuple(
    "workers" if name == "worker" else name for name in STATS_COLUMNS if name not in ("parts", "shard")
)
_KEY = ("attempt", "mode", "step", "name", "call")
_EXACT = (
    "count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count", "min", "max", "abs_min", "abs_max",
)  # fmt: skip
_ROUNDED = ("abs_sum", "square_sum")
_TOLERANCE = 1e-9  # relative difference of sums of the same values in another order


def merged_table(index: Index, captures: Captures, columns: Sequence[str] | None = None) -> pa.Table:
    """The columns MERGED_COLUMNS and DERIVED, or `columns`; rows are ordered by step and execution.

    Columns of the result: workers is the number of workers that have the tensor. seq is the value of the
    first worker. shape is the shape of the whole tensor; null for concatenated tensors. elements and nbytes
    do not include copies. time_ns is the time of the last part.
    """
    names = checked_columns([*MERGED_COLUMNS, *DERIVED] if columns is None else columns)
    table = stats_table(index, captures, STATS_COLUMNS)
    if not len(captures):
        return _empty().select(names)
    rows = captures.first_rows
    order, starts = _grouped(index, rows)
    table = table.take(pa.array(order))
    groups = _Groups.checked(table, starts)
    counted = table.filter(pa.array(groups.counted))
    counted_starts = np.concatenate([[0], np.cumsum(groups.counted)])[starts].astype(np.int64)
    made = table.take(pa.array(starts))
    statistics = ("elements", "nbytes", "status", "reason", *layout.STATISTICS_COLUMNS)
    for name, (values, null) in merged_columns(counted, counted_starts, groups.whole, statistics).items():
        made = _with(made, name, _array(made, name, values, null))
    made = groups.with_results(made)
    made = made.append_column("workers", pa.array(groups.present, pa.int64()))
    latest = np.maximum.reduceat(np.asarray(table.column("time_ns").to_numpy()), starts)
    made = _with(made, "time_ns", pa.array(latest, pa.int64()))
    for name, array in derived_columns(DERIVED, made).items():
        made = made.append_column(name, array)
    return made.take(pa.array(_in_order(index, rows[order[starts]]))).select(names)


def checked_columns(names: Sequence[str]) -> list[str]:
    """The names as a list. Raises ConfigError for a name that is not a column of merged statistics."""
    unknown = [name for name in names if name not in MERGED_COLUMNS and name not in DERIVED]
    if unknown:
        there = ", ".join([*MERGED_COLUMNS, *DERIVED])
        raise ConfigError(f"{unknown[0]!r} is not a column of merged statistics; use {there}")
    return list(names)


def _empty() -> pa.Table:
    schema = layout.index_schema()
    fields = [
        pa.field(name, pa.int64()) if name == "workers" else schema.field(name) for name in MERGED_COLUMNS
    ]
    return pa.schema([*fields, *(pa.field(name, pa.float64()) for name in DERIVED)]).empty_table()


def _grouped(index: Index, rows: Ints) -> tuple[Ints, Ints]:
    """Order of rows by tensor, step, call and rank; starts of the groups of one tensor, step and call."""
    texts = index.texts("worker")
    ranks = np.zeros(len(texts), dtype=np.int64)
    ranks[sorted(range(len(texts)), key=lambda code: worker_order(texts[code]))] = np.arange(len(texts))
    keys = [index.column(name)[rows] for name in _KEY]
    order = np.lexsort([ranks[index.column("worker")[rows]], *reversed(keys)])
    new = np.ones(len(rows), dtype=np.bool_)
    new[1:] = np.logical_or.reduce([key[order][1:] != key[order][:-1] for key in keys])
    return order, np.flatnonzero(new)


def _in_order(index: Index, rows: Ints) -> Ints:
    order: Ints = np.lexsort([index.column(name)[rows] for name in ("seq", "ticket", "attempt", "step")])
    return order


def _with(table: pa.Table, name: str, array: pa.Array) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at).with_nullable(True), array)


def _array(table: pa.Table, name: str, values: Any, null: Mask) -> pa.Array:
    kind = table.schema.field(name).type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return pa.array(np.asarray(values), kind, mask=null)
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    made = pa.array([None if no else value for value, no in zip(values, null.tolist(), strict=True)], kind)
    return made.dictionary_encode() if name in ("status", "reason") else made


@dataclass(slots=True, kw_only=True)
class _Groups:
    """The rows that are used in each group, and the result of each group.

    Attributes:
        starts: Index of the first row of each group.
        counted: For each row, whether it is used; at least one row of each group is used.
        present: For each group, the number of rows whose tensor was not absent.
        whole: For each group, whether statistics can be computed from the rows that are used.
        status, reason, shape: Values by group, where they differ from the values of the rows.
    """

    starts: Ints
    counted: Mask
    present: Ints
    whole: Mask
    status: dict[int, str] = field(default_factory=dict)
    reason: dict[int, str] = field(default_factory=dict)
    shape: dict[int, tuple[int, ...] | None] = field(default_factory=dict)

    @classmethod
    def checked(cls, table: pa.Table, starts: Ints) -> _Groups:
        """Check all groups. table: rows in groups, by rank."""
        absent = np.array([status == "absent" for status in table.column("status").to_pylist()])
        bounds = np.append(starts, len(table))
        sizes = np.diff(bounds)
        all_absent = np.logical_and.reduceat(absent, starts)
        found = cls(
            starts=starts,
            present=np.add.reduceat((~absent).astype(np.int64), starts),
            counted=~absent | np.repeat(all_absent, sizes),
            whole=np.ones(len(starts), dtype=np.bool_),
        )
        is_part = np.asarray(table.column("shard").is_valid().to_numpy(), dtype=np.bool_)
        sharded = np.logical_or.reduceat(is_part, starts)
        for at in np.flatnonzero(~sharded & (found.present > 1)).tolist():
            found.shape[at] = None
        chosen = sharded & ~all_absent
        checker = _GroupChecker(table, found, absent, np.flatnonzero(np.repeat(chosen, sizes)))
        checker.check(np.flatnonzero(chosen), bounds)
        return found

    def set_lost(self, at: int, reason: str) -> None:
        """Mark a group as lost: it has no statistics."""
        self.whole[at] = False
        self.status[at] = "lost"
        self.reason[at] = reason

    def with_results(self, table: pa.Table) -> pa.Table:
        """The table of groups with the status, reason and shape of each group."""
        for name, values in (("status", self.status), ("reason", self.reason), ("shape", self.shape)):
            if not values:
                continue
            column: list[Any] = table.column(name).to_pylist()
            for at, value in values.items():
                column[at] = list(value) if isinstance(value, tuple) else value
            table = _with(table, name, _array(table, name, column, np.zeros(len(table), dtype=np.bool_)))
        return table


class _GroupChecker:
    """Checker of the groups whose rows are parts of a tensor. Results are cached by geometry."""

    def __init__(self, table: pa.Table, groups: _Groups, absent: Mask, rows: Ints) -> None:
        """Read the columns of the rows that will be checked. rows: their positions in the table."""
        self._groups = groups
        self._absent = absent
        self._has = np.asarray(table.column("count").is_valid().to_numpy(), dtype=np.bool_)
        at = rows.tolist()
        self._dtypes, self._workers, self._shards, self._shapes = (
            dict(zip(at, table.column(name).take(pa.array(rows)).to_pylist(), strict=True))
            for name in ("dtype", "worker", "shard", "shape")
        )
        self._numbers = {
            name: np.asarray(table.column(name).cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy())
            for name in (*_EXACT, *_ROUNDED)
        }
        self._covered: dict[tuple[Box, ...], str | None] = {}

    def check(self, groups: Ints, bounds: Ints) -> None:
        """Set the rows that are used in these groups, and the reasons."""
        for at in groups.tolist():
            rows = [row for row in range(int(bounds[at]), int(bounds[at + 1])) if not self._absent[row]]
            shards = [self._shard(row) for row in rows]
            reason = self._disagreement(rows, shards)
            if reason is not None:
                self._groups.set_lost(at, reason)
                continue
            self._groups.shape[at] = shards[0].global_shape if shards[0] is not None else None
            self._count(at, rows, [shard for shard in shards if shard is not None])

    def _shard(self, row: int) -> Shard | None:
        worker = self._workers[row]
        if self._shapes[row] is None:
            return None
        return shard_of(worker, self._shards[row], self._shapes[row], "statistics of a tensor")

    def _disagreement(self, rows: Sequence[int], shards: Sequence[Shard | None]) -> str | None:
        first = shards[0]
        dtypes = {self._dtypes[row] for row in rows}
        for shard in shards:
            if shard is None or first is None or shard.global_shape != first.global_shape or len(dtypes) > 1:
                return "disagree"
            if shard.partial is not None:
                return "partial"
        return None

    def _count(self, at: int, rows: Sequence[int], shards: Sequence[Shard]) -> None:
        """Use one row of each box: the first row with statistics."""
        groups = self._groups
        chosen: dict[Box, int] = {}
        for row, shard in zip(rows, shards, strict=True):
            known = chosen.get(shard.box)
            if known is None or not self._has[known]:
                if known is not None:
                    groups.counted[known] = False
                chosen[shard.box] = row
                continue
            groups.counted[row] = False
            if self._has[row] and self._differ(known, row):
                groups.reason[at] = "copies_differ"
        reason = self._gap(shards[0].global_shape, tuple(chosen))
        if reason is not None:
            groups.set_lost(at, reason)

    def _gap(self, shape: tuple[int, ...], boxes: tuple[Box, ...]) -> str | None:
        key = (tuple((0, size) for size in shape), *boxes)
        if key not in self._covered:
            cover = UncoveredCells(shape)
            apart = [cover.add(box) for box in boxes]
            self._covered[key] = None if all(apart) else "overlap"
            if cover.left:
                self._covered[key] = "incomplete"
        return self._covered[key]

    def _differ(self, one: int, other: int) -> bool:
        numbers = self._numbers
        exact = all(_equal(numbers[name][one], numbers[name][other], 0.0) for name in _EXACT)
        return not exact or not all(
            _equal(numbers[name][one], numbers[name][other], _TOLERANCE) for name in _ROUNDED
        )


def _equal(a: float, b: float, tolerance: float) -> bool:
    if a == b or (a != a and b != b):
        return True
    return bool(abs(a - b) <= tolerance * max(abs(a), abs(b)))
