"""Statistics of captures as a table, with merged parts and derived columns.

Statistics describe the finite values of a tensor; NaN and Inf are counted separately. Parts are merged with
the method of Chan, Golub and LeVeque (1979), so large means lose no precision. Pure functions, any thread.
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
from tdcore.trial.captures import Captures
from tdcore.trial.index import Index

__all__ = ["DERIVED", "STATS_COLUMNS", "derived_columns", "merged_columns", "stats_table"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

DERIVED = ("sum", "variance", "std", "l1", "l2")
_COUNTS = ("count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count", "subnormal_count")
_SUMS = ("abs_sum", "square_sum")
_SMALLEST = ("min", "abs_min")
_LARGEST = ("max", "abs_max")
_FLOATS = (*_SMALLEST, *_LARGEST, "mean", "m2", *_SUMS)
_LOG2_BINS = 64
_RANKED = ["ok", "lost", "absent", "skipped"]  # statuses, the best first
_GROUPS_AT_ONCE = 1 << 15
_FINITE = ("count", "nan_count", "pos_inf_count", "neg_inf_count")
_SOURCES = {  # columns from which each column of DERIVED is computed
    "sum": (*_FINITE, "mean"),
    "variance": (*_FINITE, "m2"),
    "std": (*_FINITE, "m2"),
    "l1": (*_FINITE, "abs_sum"),
    "l2": (*_FINITE, "square_sum"),
}

STATS_COLUMNS = (
    "attempt", "worker", "mode", "mode_step", "step", "seq", "name", "kind", "origin", "call", "dtype",
    "shape", "shard", "parts", "elements", "time_ns", "status", "reason", "nbytes",
    *layout.STATISTICS_COLUMNS,
)  # fmt: skip


def stats_table(index: Index, captures: Captures, columns: Sequence[str] | None = None) -> pa.Table:
    """One row per capture, with the columns STATS_COLUMNS and DERIVED, or `columns` in their order.

    The columns of the index describe the whole tensor: `elements` and `nbytes` are sums over its parts.
    sum, variance (population), std, l1 and l2 describe the finite values, and are null without statistics. A
    capture with missing parts has status "lost", reason "incomplete" and no statistics.
    """
    names = [*STATS_COLUMNS, *DERIVED] if columns is None else list(columns)
    needed = needed_columns(names)
    table = index.table(captures.first_rows, needed)
    sizes = np.diff(np.append(captures.starts, len(captures.rows)))
    several = np.flatnonzero((sizes > 1) | ~captures.complete)
    if len(several):
        table = _patched(table, index, captures, several, sizes[several])
    wanted = [name for name in DERIVED if name in names]
    if wanted:
        arrays = derived_columns(wanted, table)
        for name in wanted:
            table = table.append_column(name, arrays[name])
    return table.select(names)


def needed_columns(names: Sequence[str] | None) -> list[str]:
    """The columns of the index from which stats_table() makes these columns; None: all columns.

    Raises ConfigError for a name that is not a column of stats_table().
    """
    wanted = [*STATS_COLUMNS, *DERIVED] if names is None else list(names)
    unknown = [name for name in wanted if name not in (*STATS_COLUMNS, *DERIVED, "ticket")]
    if unknown:
        there = ", ".join([*STATS_COLUMNS, *DERIVED])
        raise ConfigError(f"{unknown[0]!r} is not a column of stats(); use {there}")
    needed = dict.fromkeys(name for name in wanted if name not in DERIVED)
    for name in wanted:
        needed.update(dict.fromkeys(_SOURCES.get(name, ())))
    return list(needed)


def derived_columns(names: Sequence[str], table: pa.Table) -> dict[str, pa.Array]:
    """The columns of DERIVED among `names`, from the statistics columns of a table."""
    if not names:
        return {}
    none = _isnull(table, "count")
    finite = _numbers(table, "count") - sum(
        _numbers(table, f"{kind}_count") for kind in ("nan", "pos_inf", "neg_inf")
    )
    found: dict[str, Floats] = {}
    with np.errstate(all="ignore"):
        if "sum" in names:
            found["sum"] = np.where(finite > 0, _numbers(table, "mean") * finite, 0.0)
        if "l1" in names:
            found["l1"] = _numbers(table, "abs_sum")
        if "l2" in names:
            found["l2"] = np.sqrt(_numbers(table, "square_sum"))
        if "variance" in names or "std" in names:
            variance = np.where(finite > 0, np.maximum(_numbers(table, "m2"), 0.0) / finite, np.nan)
            found |= {"variance": variance, "std": np.sqrt(variance)}
    return {name: pa.array(found[name], pa.float64(), mask=none) for name in names}


def _isnull(table: pa.Table, name: str) -> Mask:
    column = table.column(name)
    if not column.null_count:
        return np.zeros(len(column), dtype=np.bool_)
    return np.asarray(column.is_null().to_numpy(), dtype=np.bool_)


def _numbers(table: pa.Table, name: str) -> Floats:
    column = table.column(name).cast(pa.float64(), safe=False)
    column = column.fill_null(0.0) if column.null_count else column
    return np.asarray(column.to_numpy(), dtype=np.float64)


def _patched(table: pa.Table, index: Index, captures: Captures, at: Ints, sizes: Ints) -> pa.Table:
    """The table with corrected rows for the captures at `at`, which have several or missing parts."""
    spans = np.concatenate([captures.parts(int(one)) for one in at])
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)[:-1]])
    names = [name for name in table.column_names if name in _MERGED]
    source = dict.fromkeys([*names, *_COUNTS, "mean"] if set(names) & set(_FLOATS) else names)
    if "log2_counts" in source or "log2_first" in source:
        source.update(dict.fromkeys(("log2_first", "log2_counts", "count")))
    if "reason" in source or "status" in source:
        source.update(dict.fromkeys(("status", "reason")))
    parts = index.table(spans, list(source))
    whole = captures.complete[at]
    for name, (values, null) in merged_columns(parts, starts, whole, names).items():
        kind = layout.index_schema().field(name).type
        position = table.schema.get_field_index(name)
        table = table.set_column(
            position, table.schema.field(position), _replace(table.column(name), at, values, null, kind)
        )
    return table


def _replace(column: pa.ChunkedArray, at: Ints, values: Any, null: Mask, kind: pa.DataType) -> pa.Array:
    """The column with other values at these positions."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = column.fill_null(0).to_numpy().copy()
        nulls = np.asarray(column.is_null().to_numpy(), dtype=np.bool_).copy()
        numbers[at], nulls[at] = np.where(null, 0, values), null
        return pa.array(numbers, kind, mask=nulls)
    texts_or_lists, values = column.to_pylist(), values.to_pylist()
    for one, value, isnull in zip(at.tolist(), values, null.tolist(), strict=True):
        texts_or_lists[one] = None if isnull else value
    value_type = kind.value_type if pa.types.is_dictionary(kind) else kind
    made = pa.array(texts_or_lists, value_type)
    return made.dictionary_encode() if pa.types.is_dictionary(kind) else made


_MERGED = frozenset((*layout.STATISTICS_COLUMNS, "elements", "nbytes", "status", "reason"))


def merged_columns(
    parts: pa.Table, starts: Ints, whole: Mask, names: Sequence[str]
) -> dict[str, tuple[Any, Mask]]:
    """Merged columns of groups of adjacent parts that begin at `starts`: values, and where they are null."""
    merged: dict[str, tuple[Any, Mask]] = {}
    never = np.zeros(len(starts), dtype=np.bool_)
    if "count" in parts.column_names:
        null = np.logical_or.reduceat(_isnull(parts, "count"), starts) | ~whole
    else:
        null = never
    for name in names:
        if name in _COUNTS:
            merged[name] = (np.add.reduceat(_integers(parts, name), starts), null)
        elif name in ("elements", "nbytes"):
            missing = (
                never if name == "elements" else np.logical_or.reduceat(_isnull(parts, name), starts) | ~whole
            )
            merged[name] = (np.add.reduceat(_integers(parts, name), starts), missing)
        elif name in _SUMS:
            merged[name] = (np.add.reduceat(_numbers(parts, name), starts), null)
        elif name in _SMALLEST:
            merged[name] = (np.fmin.reduceat(_numbers(parts, name), starts), null)
        elif name in _LARGEST:
            merged[name] = (np.fmax.reduceat(_numbers(parts, name), starts), null)
    if "mean" in names or "m2" in names:
        mean, m2 = _moments(parts, starts)
        merged |= {name: (values, null) for name, values in (("mean", mean), ("m2", m2)) if name in names}
    if "log2_counts" in names or "log2_first" in names:
        first, counts = _histograms(parts, starts)
        merged |= {n: (v, null) for n, v in (("log2_first", first), ("log2_counts", counts)) if n in names}
    if "status" in names or "reason" in names:
        status, reason = _statuses(parts, starts, whole)
        no_reason = np.asarray(reason.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)
        merged |= {
            n: v for n, v in (("status", (status, never)), ("reason", (reason, no_reason))) if n in names
        }
    return merged


def _integers(table: pa.Table, name: str) -> Ints:
    return np.asarray(table.column(name).fill_null(0).to_numpy(), dtype=np.int64)


def _moments(parts: pa.Table, starts: Ints) -> tuple[Floats, Floats]:
    """Mean and sum of squared deviations of groups of adjacent parts."""
    sizes = np.diff(np.append(starts, len(parts)))
    finite = _numbers(parts, "count") - sum(
        _numbers(parts, f"{kind}_count") for kind in ("nan", "pos_inf", "neg_inf")
    )
    with np.errstate(all="ignore"):
        total = np.add.reduceat(finite, starts)
        means = np.where(finite > 0, _numbers(parts, "mean"), 0.0)
        mean = np.add.reduceat(means * finite, starts) / total
        large = (total > 0) & ~np.isfinite(mean)
        if large.any():  # the sum exceeds the range of float64, the mean does not
            shares = np.add.reduceat(means * (finite / np.repeat(total, sizes)), starts)
            mean = np.where(large, shares, mean)
        m2 = (
            np.where(finite > 0, _numbers(parts, "m2"), 0.0)
            if "m2" in parts.column_names
            else np.zeros(len(finite))
        )
        m2 = np.add.reduceat(m2 + finite * np.square(means - np.repeat(mean, sizes)), starts)
    return np.where(total > 0, mean, np.nan), np.where(total > 0, m2, 0.0)


def _histograms(parts: pa.Table, starts: Ints) -> tuple[Ints, pa.Array]:
    """First bins, and lists of counts, of groups of adjacent parts, without empty bins at either end."""
    counts, lengths = _flat(parts.column("log2_counts"))
    low = _integers(parts, "log2_first") - layout.LOG2_MIN
    fits = (low >= 0) & (low + lengths <= _LOG2_BINS)
    ends = np.append(starts, len(parts))
    positions = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    firsts, sizes, pieces = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)], list[Ints]()
    for begin in range(0, len(starts), _GROUPS_AT_ONCE):  # because a group has 64 bins in memory
        end = min(begin + _GROUPS_AT_ONCE, len(starts))
        rows = slice(int(ends[begin]), int(ends[end]))
        group = np.repeat(np.arange(end - begin), np.diff(ends[begin : end + 1]))
        of_rows, first = lengths[rows], positions[rows]
        numbers = counts[positions[rows.start] : positions[rows.stop]]
        within = np.arange(len(numbers)) + positions[rows.start] - np.repeat(first, of_rows)
        place = np.repeat(group * _LOG2_BINS + low[rows], of_rows) + within
        kept = np.repeat(fits[rows], of_rows)
        total = np.zeros((end - begin) * _LOG2_BINS, dtype=np.int64)
        np.add.at(total, place[kept], numbers[kept])
        bins = total.reshape(end - begin, _LOG2_BINS)
        used = bins != 0
        some = used.any(axis=1)
        lowest = np.where(some, used.argmax(axis=1), 0)
        highest = np.where(some, _LOG2_BINS - used[:, ::-1].argmax(axis=1), 0)
        bin_of = np.arange(_LOG2_BINS)
        pieces.append(bins[(bin_of >= lowest[:, None]) & (bin_of < highest[:, None])])
        firsts.append(lowest + layout.LOG2_MIN)
        sizes.append(highest - lowest)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.concatenate(sizes))])
    flat = np.concatenate([np.empty(0, dtype=np.int64), *pieces])
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat))
    return np.concatenate(firsts), lists


def _flat(column: pa.ChunkedArray) -> tuple[Ints, Ints]:
    """All numbers of a column of lists, one list after the other, and the length of each list."""
    numbers = [pa.array([], pa.int64()), *(chunk.flatten() for chunk in column.chunks)]
    flat = pa.chunked_array(numbers).fill_null(0)
    lengths = pc.list_value_length(column).fill_null(0)
    return np.asarray(flat.to_numpy(), dtype=np.int64), np.asarray(lengths.to_numpy(), dtype=np.int64)


def _statuses(parts: pa.Table, starts: Ints, whole: Mask) -> tuple[pa.Array, pa.Array]:
    """The worst status in each group of adjacent parts, and the first reason, as text columns."""
    ranks = pc.index_in(parts.column("status").cast(pa.string()), value_set=pa.array(_RANKED)).to_numpy()
    worst = np.maximum.reduceat(np.asarray(ranks, dtype=np.int64), starts)
    worst = np.where(whole, worst, _RANKED.index("lost"))
    reasons = parts.column("reason").cast(pa.string())
    given = np.asarray(pc.fill_null(pc.not_equal(reasons, ""), False).to_numpy(), dtype=np.bool_)
    places = np.where(given, np.arange(len(given)), len(given))
    first = np.minimum.reduceat(places, starts)
    reasons = pa.concat_arrays([*reasons.chunks, pa.array([None, "incomplete"], pa.string())])
    return (
        pa.array(_RANKED).take(pa.array(worst)),
        reasons.take(pa.array(np.where(whole, first, len(given) + 1))),
    )
