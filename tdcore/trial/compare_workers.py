"""compare_workers: compare one statistic across workers, and measure the deviation of each worker.

Pure functions, any thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.errors import ConfigError
from tdcore.format import layout
from tdcore.trial.statistics import DERIVED
from tdcore.trial.worker_order import worker_order

__all__ = ["compare_values", "compare_workers"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_KEY = ("attempt", "mode", "step", "name", "call")
_OTHERS = ("elements", "nbytes", "seq", "time_ns")
_NORMAL = 1.4826  # standard deviation of a normal distribution over its median absolute deviation


def compare_workers(stats: pa.Table, column: str, *, across_shards: bool) -> pa.Table:
    """Compare one statistic across workers; see Trial.compare_workers. stats: all columns of stats_table."""
    numbers = [*layout.STATISTICS_COLUMNS[:-2], *DERIVED, *_OTHERS]
    if column not in numbers:
        raise ConfigError(f"{column!r} is not a column that can be compared; use one of {', '.join(numbers)}")
    value = stats.column(column).cast(pa.float64(), safe=False)
    values = np.asarray(value.fill_null(np.nan).to_numpy(), dtype=np.float64)
    return compare_values(stats, values, across_shards=across_shards)


def compare_values(stats: pa.Table, values: Floats, *, across_shards: bool) -> pa.Table:
    """Compare values of any kind, one for each row of `stats`; see compare_workers."""
    group, size = _groups(stats, across_shards)
    with np.errstate(all="ignore"):
        median = _medians(values, group)[group]
        distance = values - median
        distance[values == median] = 0.0  # also for infinities
        spread = _NORMAL * _medians(np.abs(distance), group)[group]
        deviation = np.where(distance == 0, 0.0, distance / spread)
    deviation[size[group] < 2] = np.nan
    rank = _ranks(stats.column("worker"))
    columns: dict[str, Any] = {
        name: stats.column(name)
        for name in ("attempt", "mode", "mode_step", "step", "name", "kind", "call", "worker")
    }
    for name, array in (("value", values), ("median", median), ("deviation", deviation)):
        columns[name] = pa.array(array, pa.float64(), mask=np.isnan(array))
    columns["order"] = pa.array(_order(group, deviation, rank), pa.int64())
    columns["alike"] = pa.array(size[group], pa.int64())
    place = _first_rows(group)[group]
    return pa.table(columns).take(pa.array(np.lexsort([rank, place])))


def _ranks(workers: pa.ChunkedArray) -> Ints:
    """Position of the worker of each row among all workers, sorted by rank."""
    encoded = _encoded(workers)
    texts = encoded.dictionary.to_pylist()
    places = np.empty(len(texts), dtype=np.int64)
    places[sorted(range(len(texts)), key=lambda code: worker_order(texts[code]))] = np.arange(len(texts))
    found: Ints = places[np.asarray(encoded.indices.to_numpy(), dtype=np.int64)]
    return found


def _groups(stats: pa.Table, across_shards: bool) -> tuple[Ints, Ints]:
    """The group of comparable rows of each row, and the number of rows in each group."""
    keys = [np.asarray(_codes(stats.column(name))) for name in _KEY]
    column = stats.column("shard")
    if not across_shards and column.null_count < len(column):
        shards, shapes = column.to_pylist(), stats.column("shape").to_pylist()
        boxes: dict[str, int] = {}
        parts = [
            f"{shard['global_shape']} {shard['offset']} {shape}" if shard else ""
            for shard, shape in zip(shards, shapes, strict=True)
        ]
        keys.append(np.array([boxes.setdefault(part, len(boxes)) for part in parts], dtype=np.int64))
    if not len(stats):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    order = np.lexsort(keys)
    new = np.logical_or.reduce([np.diff(key[order], prepend=key[order[:1]] - 1) != 0 for key in keys])
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.cumsum(new) - 1
    return group, np.bincount(group).astype(np.int64)


def _codes(column: pa.ChunkedArray) -> Ints:
    """Integer codes of a column: equal codes for equal values."""
    if pa.types.is_integer(column.type):
        return np.asarray(column.to_numpy(), dtype=np.int64)
    return np.asarray(_encoded(column).indices.to_numpy(), dtype=np.int64)


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column of texts, none of them null, with one dictionary."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    whole = column.cast(kind).combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0) if whole.num_chunks else pa.array([], kind)
    return whole.dictionary_encode()


def _medians(values: Floats, group: Ints) -> Floats:
    """Median of each group, ignoring NaNs; NaN for a group of NaNs."""
    groups = int(group.max()) + 1 if len(group) else 0
    order = np.lexsort([values, group])  # NaNs come last
    start = np.searchsorted(group[order], np.arange(groups))
    count = np.bincount(group[~np.isnan(values)], minlength=groups)
    found = np.full(groups, np.nan)
    some = np.flatnonzero(count)
    low = values[order[start[some] + (count[some] - 1) // 2]]
    high = values[order[start[some] + count[some] // 2]]
    with np.errstate(all="ignore"):
        found[some] = np.where(low == high, low, low / 2 + high / 2)
    return found


def _order(group: Ints, deviation: Floats, rank: Ints) -> Ints:
    """Rank of each deviation in its group: 1 for the largest. Ties: by rank of the worker. NaN comes last."""
    order = np.lexsort([rank, np.where(np.isnan(deviation), np.inf, -np.abs(deviation)), group])
    start = np.searchsorted(group[order], group[order])
    found = np.empty(len(group), dtype=np.int64)
    found[order] = np.arange(len(group)) - start + 1
    return found


def _first_rows(group: Ints) -> Ints:
    _, first = np.unique(group, return_index=True)
    return first.astype(np.int64)
