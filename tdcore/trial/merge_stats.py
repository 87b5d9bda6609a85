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
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.errors import ConfigError
from tdcore.format import layout
from tdcore.trial.captures import Captures
from tdcore.trial.index import Index
from tdcore.trial.merge_groups import EXACT, ROUNDED, Groups, groups_of
from tdcore.trial.statistics import DERIVED, STATS_COLUMNS, derived_columns, merged_columns, stats_table
from tdcore.trial.worker_order import worker_order

__all__ = ["MERGED_COLUMNS", "checked_columns", "merged_table"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MERGED_COLUMNS = tuple(
    "workers" if name == "worker" else name for name in STATS_COLUMNS if name not in ("parts", "shard")
)
_KEY = ("attempt", "mode", "step", "name", "call")
_GROUPING = ("worker", "status", "dtype", "shape", "shard", "count")
_FINITE = ("count", "nan_count", "pos_inf_count", "neg_inf_count")
_NEEDED = (  # columns of the result, and the columns from which they are merged
    (DERIVED, (*_FINITE, "mean", "m2", *ROUNDED)),
    (("mean", "m2"), (*_FINITE, "mean", "m2")),
    (("log2_first", "log2_counts"), ("log2_first", "log2_counts")),
    (("status", "reason"), ("status", "reason")),
)
_MERGED = frozenset((*layout.STATISTICS_COLUMNS, "elements", "nbytes", "status", "reason"))


def merged_table(index: Index, captures: Captures, columns: Sequence[str] | None = None) -> pa.Table:
    """The columns MERGED_COLUMNS and DERIVED, or `columns`; rows are ordered by step and execution.

    Columns of the result: workers is the number of workers that have the tensor. seq is the value of the
    first worker. shape is the shape of the whole tensor; null for concatenated tensors. elements and nbytes
    do not include copies. time_ns is the time of the last part.
    """
    names = checked_columns([*MERGED_COLUMNS, *DERIVED] if columns is None else columns)
    if not len(captures):
        return _empty().select(names)
    statistics = _statistics_for(names)
    read = dict.fromkeys([*_GROUPING, *statistics, *(name for name in names if name in STATS_COLUMNS)])
    table = stats_table(index, captures, list(read))
    rows = captures.first_rows
    order, starts = _grouped(index, rows)
    table = table.take(pa.array(order))
    numbers = None
    if table.column("shard").null_count < len(table):
        numbers = stats_table(index, captures, [*EXACT, *ROUNDED]).take(pa.array(order))
    groups = groups_of(table, numbers, starts)
    counted = table.filter(pa.array(groups.counted))
    counted_starts = np.concatenate([[0], np.cumsum(groups.counted)])[starts].astype(np.int64)
    made = table.take(pa.array(starts))
    for name, (values, null) in merged_columns(counted, counted_starts, groups.whole, statistics).items():
        made = _with(made, name, _array(made, name, values, null))
    made = _with_results(made, groups, names)
    made = made.append_column("workers", pa.array(groups.present, pa.int64()))
    if "time_ns" in names:
        latest = np.maximum.reduceat(np.asarray(table.column("time_ns").to_numpy()), starts)
        made = _with(made, "time_ns", pa.array(latest, pa.int64()))
    derived = [name for name in DERIVED if name in names]
    for name, array in derived_columns(derived, made).items() if derived else ():
        made = made.append_column(name, array)
    return made.take(pa.array(_in_order(index, rows[order[starts]]))).select(names)


def _statistics_for(names: Sequence[str]) -> list[str]:
    """The columns that must be merged for these columns of the result."""
    wanted = dict.fromkeys(name for name in names if name in _MERGED)
    for some, needed in _NEEDED:
        if any(name in some for name in names):
            wanted.update(dict.fromkeys(needed))
    return list(wanted)


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


def _with_results(table: pa.Table, groups: Groups, names: Sequence[str]) -> pa.Table:
    """The table, with the status, reason and shape of each group where they are not those of its rows."""
    for name, values in (("status", groups.status), ("reason", groups.reason)):
        if name in names and values:
            column = table.column(name).cast(pa.string()).to_pylist()
            for at, text in values.items():
                column[at] = text
            table = _with(table, name, pa.array(column, pa.string()).dictionary_encode())
    if "shape" in names and groups.shape:
        shapes: list[Any] = table.column("shape").to_pylist()
        for at, shape in groups.shape.items():
            shapes[at] = None if shape is None else list(shape)
        table = _with(table, "shape", pa.array(shapes, table.schema.field("shape").type))
    return table
