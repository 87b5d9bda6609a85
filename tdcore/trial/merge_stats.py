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
import pyarrow.compute as pc

from tdcore.errors import ConfigError
from tdcore.format import layout
from tdcore.trial.captures import Captures, joined_key, ordered_key
from tdcore.trial.index import Index
from tdcore.trial.merge_groups import CHECKED_COLUMNS, Groups, check_parts, with_column
from tdcore.trial.statistics import (
    DERIVED,
    STATS_COLUMNS,
    derived_columns,
    merged_columns,
    needed_columns,
    stats_table,
)
from tdcore.trial.worker_order import worker_order

__all__ = [
    "MERGED_COLUMNS",
    "checked_columns",
    "merged_sources",
    "merged_table",
    "plain_sources",
    "plain_table",
]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MERGED_COLUMNS = tuple(
    "workers" if name == "worker" else name for name in STATS_COLUMNS if name not in ("parts", "shard")
)
_KEY = ("attempt", "mode", "step", "name", "call")
_MERGED = ("elements", "nbytes", "status", "reason", *layout.STATISTICS_COLUMNS)


def merged_table(index: Index, captures: Captures, columns: Sequence[str] | None = None) -> pa.Table:
    """The columns MERGED_COLUMNS and DERIVED, or `columns`; rows are ordered by step and execution.

    Columns of the result: workers is the number of workers that have the tensor. seq is the value of the
    first worker. shape is the shape of the whole tensor; null for concatenated tensors. elements and nbytes
    do not include copies. time_ns is the time of the last part.
    """
    names = checked_columns([*MERGED_COLUMNS, *DERIVED] if columns is None else columns)
    if not len(captures):
        return _empty().select(names)
    rows = captures.first_rows
    order, starts = _grouped(index, rows)
    ordered = captures.taken(order)
    needed = merged_sources(names)
    table = stats_table(index, ordered, needed)
    groups = Groups.of(table, starts)
    checked = groups.is_checked(table)
    if checked.any():
        rows_of_parts = np.flatnonzero(np.repeat(checked, groups.sizes) & ~groups.absent)
        parts = stats_table(index, ordered.taken(rows_of_parts), CHECKED_COLUMNS)
        check_parts(parts, rows_of_parts, np.flatnonzero(checked), groups)
    counted = table if groups.counted.all() else table.filter(pa.array(groups.counted))
    counted_starts = np.concatenate([[0], np.cumsum(groups.counted)])[starts].astype(np.int64)
    made = table.take(pa.array(starts))
    statistics = [name for name in _MERGED if name in needed]
    for name, (values, null) in merged_columns(counted, counted_starts, groups.whole, statistics).items():
        made = with_column(made, name, _array(made, name, values, null))
    made = groups.with_results(made)
    if "workers" in names:
        made = made.append_column("workers", pa.array(groups.present, pa.int64()))
    if "time_ns" in names:
        latest = np.maximum.reduceat(np.asarray(table.column("time_ns").to_numpy()), starts)
        made = with_column(made, "time_ns", pa.array(latest, pa.int64()))
    for name, array in derived_columns([name for name in DERIVED if name in names], made).items():
        made = made.append_column(name, array)
    return made.take(pa.array(_in_order(index, rows[order[starts]]))).select(names)


def plain_table(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The columns `names` of merged_table() if each row is a whole tensor of one worker, in the same order.

    table: the columns plain_sources(names) of these rows.
    """
    every, whole = np.arange(len(table)), np.ones(len(table), dtype=np.bool_)
    statistics = [name for name in _MERGED if name in table.column_names and _changes(table, name)]
    for name, (values, null) in merged_columns(table, every, whole, statistics).items():
        table = with_column(table, name, _array(table, name, values, null))
    if "workers" in names:
        absent = pc.equal(table.column("status").cast(pa.string()), "absent")
        table = table.append_column("workers", pc.invert(absent).cast(pa.int64()))
    for name, array in derived_columns([name for name in DERIVED if name in names], table).items():
        table = table.append_column(name, array)
    fields = [f.with_nullable(True) if f.name in (*_MERGED, "time_ns") else f for f in table.schema]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields)).select(names)


def _changes(table: pa.Table, name: str) -> bool:
    """Whether a merge of one row can change the column: by rounding, or because of nulls."""
    if name in ("mean", "m2", "log2_first", "log2_counts", "status", "reason"):
        return True
    return bool(table.column(name).null_count) or bool(
        "count" in table.column_names and table.column("count").null_count
    )


def plain_sources(names: Sequence[str]) -> list[str]:
    """The columns of the index from which plain_table() makes these columns."""
    needed = dict.fromkeys(merged_sources(names))
    texts = {name for name in ("shape", "shard", "reason") if name not in names}
    texts |= set() if {"status", "workers", "reason"} & set(names) else {"status"}
    return [name for name in needed if name not in texts]


def merged_sources(names: Sequence[str] | None) -> list[str]:
    """The columns of stats_table() from which merged_table() makes these columns; None: all columns."""
    wanted = checked_columns([*MERGED_COLUMNS, *DERIVED] if names is None else names)
    needed = dict.fromkeys(needed_columns([name for name in wanted if name != "workers"]))
    if needed.keys() & {"mean", "m2"}:
        needed.update(dict.fromkeys(("mean", "nan_count", "pos_inf_count", "neg_inf_count")))
    if needed.keys() & {"log2_first", "log2_counts"}:
        needed.update(dict.fromkeys(("log2_first", "log2_counts")))
    needed.update(dict.fromkeys(("shape", "shard", "status", "reason", "count")))
    return list(needed)


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
    key = ordered_key(index, rows, _KEY)
    order = np.argsort(joined_key([key, ranks[index.column("worker")[rows]]]), kind="stable")
    key = key[order]
    new = np.ones(len(rows), dtype=np.bool_)
    new[1:] = key[1:] != key[:-1]
    return order, np.flatnonzero(new)


def _in_order(index: Index, rows: Ints) -> Ints:
    key = ordered_key(index, rows, ("step", "attempt", "ticket", "seq"))
    order: Ints = np.argsort(key, kind="stable")
    return order


def _array(table: pa.Table, name: str, values: Any, null: Mask) -> pa.Array:
    """A column of the table with other values. values: numbers, or an Arrow array of texts or lists."""
    kind = table.schema.field(name).type
    if not isinstance(values, pa.Array):
        return pa.array(np.asarray(values), kind, mask=null)
    if null.any():
        values = pc.if_else(pa.array(null), pa.scalar(None, values.type), values)
    return values.dictionary_encode() if pa.types.is_dictionary(kind) else values.cast(kind)
