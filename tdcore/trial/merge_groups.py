"""Groups: the rows of all workers that describe one tensor, and the rows of them that are merged.

Tensors of a model have the same parts at all steps, so groups with the same geometry are checked once. Pure
functions, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tdcore.trial.shard_boxes import Box, Shard, UncoveredCells, shard_of

__all__ = ["EXACT", "ROUNDED", "Groups", "groups_of"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

EXACT = (
    "count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count", "min", "max", "abs_min", "abs_max",
)  # fmt: skip
"""Statistics that are equal in copies."""
ROUNDED = ("abs_sum", "square_sum")
"""Statistics that may differ by the order of additions."""
_TOLERANCE = 1e-9  # relative difference of sums of the same values in another order


@dataclass(slots=True, kw_only=True)
class Groups:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """The result of all groups with the same geometry. Rows are positions in a group, without absent rows.

    Attributes:
        reason: Why the tensor cannot be merged; None if it can.
        unused: Rows that are not used.
        copies: (row, copy of this row), both with statistics.
        shape: Shape of the whole tensor; None if the rows disagree.
    """

    reason: str | None = None
    unused: tuple[int, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    shape: tuple[int, ...] | None = None


def groups_of(table: pa.Table, numbers: pa.Table | None, starts: Ints) -> Groups:
    """Check all groups.

    Args:
        table: Rows in groups, by rank, with the columns worker, status, dtype, shape, shard and count.
        numbers: The columns EXACT and ROUNDED of these rows; None if no tensor is sharded.
        starts: The first row of each group.
    """
    absent = np.asarray(pc.equal(table.column("status").cast(pa.string()), "absent").to_numpy())
    sizes = np.diff(np.append(starts, len(table)))
    all_absent = np.logical_and.reduceat(absent, starts)
    found = Groups(
        starts=starts,
        present=np.add.reduceat((~absent).astype(np.int64), starts),
        counted=~absent | np.repeat(all_absent, sizes),
        whole=np.ones(len(starts), dtype=np.bool_),
    )
    is_part = np.asarray(table.column("shard").is_valid().to_numpy(), dtype=np.bool_)
    sharded = np.logical_or.reduceat(is_part, starts)
    found.shape.update(dict.fromkeys(np.flatnonzero(~sharded & (found.present > 1)).tolist()))
    chosen = sharded & ~all_absent
    if numbers is not None and chosen.any():
        _check(table, numbers, found, np.flatnonzero(np.repeat(chosen, sizes) & ~absent), sizes)
    return found


def _check(table: pa.Table, numbers: pa.Table, groups: Groups, rows: Ints, sizes: Ints) -> None:
    """Set the results of the groups of these rows, which are parts of tensors."""
    group = np.repeat(np.arange(len(sizes)), sizes)[rows]
    first = np.flatnonzero(np.diff(group, prepend=-1))  # first of `rows` of each group
    count = np.diff(np.append(first, len(rows)))
    has = np.asarray(table.column("count").is_valid().to_numpy(), dtype=np.bool_)[rows]
    geometry = _geometries(table, rows)
    pattern, examples = _patterns(2 * geometry + has, first, count)
    one, other, of_group = ([np.empty(0, dtype=np.int64)] for _ in range(3))
    for number, example in enumerate(examples.tolist()):
        mine = slice(first[example], first[example] + count[example])
        result = _result(table, rows[mine], has[mine])
        alike = np.flatnonzero(pattern == number)
        at = group[first[alike]]
        for row in result.unused:
            groups.counted[rows[first[alike] + row]] = False
        for row, copy in result.copies:
            one.append(rows[first[alike] + row])
            other.append(rows[first[alike] + copy])
            of_group.append(at)
        places = at.tolist()
        if result.shape is not None:
            groups.shape.update(dict.fromkeys(places, result.shape))
        if result.reason is not None:
            groups.whole[at] = False
            groups.status.update(dict.fromkeys(places, "lost"))
            groups.reason.update(dict.fromkeys(places, result.reason))
    differ = _differ(numbers, np.concatenate(one), np.concatenate(other))
    for place in np.unique(np.concatenate(of_group)[differ]).tolist():
        groups.reason.setdefault(place, "copies_differ")


def _geometries(table: pa.Table, rows: Ints) -> Ints:
    """A number for each row, equal for rows of the same dtype, shape, place and whole tensor."""
    part = table.select(["dtype", "shape", "shard"]).take(pa.array(rows))
    shards = part.column("shard").combine_chunks()
    if isinstance(shards, pa.ChunkedArray):
        shards = shards.chunk(0)
    whole, offset, partial = shards.flatten()
    key = np.asarray(shards.is_valid().to_numpy(zero_copy_only=False), dtype=np.int64)
    for texts in (part.column("dtype").cast(pa.string()).combine_chunks(), partial):
        key = _combined(key, _codes(texts))
    for lists in (whole, offset, part.column("shape").combine_chunks()):
        lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
        lengths = np.asarray(
            lists.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64
        )
        key = _combined(key, lengths + 1)
        flat = np.asarray(lists.flatten().fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
        begins = np.cumsum(np.maximum(lengths, 0)) - np.maximum(lengths, 0)
        for axis in range(int(lengths.max(initial=0))):
            there = lengths > axis
            size = np.full(len(rows), -2, dtype=np.int64)
            size[there] = flat[begins[there] + axis]
            key = _combined(key, np.unique(size, return_inverse=True)[1])
    return key


def _codes(texts: pa.Array) -> Ints:
    texts = texts.chunk(0) if isinstance(texts, pa.ChunkedArray) else texts
    return np.asarray(texts.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)) + 1


def _combined(key: Ints, part: Ints) -> Ints:
    """One number for each pair of numbers, from 0 without gaps. part: small numbers from 0."""
    pairs = key * (int(part.max(initial=0)) + 1) + part
    found: Ints = np.unique(pairs, return_inverse=True)[1]
    return found


def _patterns(code: Ints, first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """(a number for each group, equal for groups with the same codes in order; a group of each number)."""
    key = np.zeros(len(first), dtype=np.int64)
    for at in range(int(count.max(initial=0))):
        part = np.zeros(len(first), dtype=np.int64)
        there = count > at
        part[there] = code[first[there] + at] + 1
        key = _combined(key, part)
    _, examples, pattern = np.unique(key, return_index=True, return_inverse=True)
    return pattern, examples


def _result(table: pa.Table, rows: Ints, has: Mask) -> _Result:
    """The result of a group. rows: its rows without absent ones. has: whether they have statistics."""
    columns = table.select(["worker", "dtype", "shape", "shard"]).take(pa.array(rows)).to_pylist()
    shards = [
        None
        if row["shape"] is None
        else shard_of(row["worker"], row["shard"], row["shape"], "statistics of a tensor")
        for row in columns
    ]
    reason = _disagreement(shards, len({row["dtype"] for row in columns}))
    known = [shard for shard in shards if shard is not None]
    return _Result(reason=reason) if reason is not None else _parts(known, has.tolist())


def _disagreement(shards: Sequence[Shard | None], dtypes: int) -> str | None:
    first = shards[0]
    for shard in shards:
        if shard is None or first is None or shard.global_shape != first.global_shape or dtypes > 1:
            return "disagree"
        if shard.partial is not None:
            return "partial"
    return None


def _parts(shards: Sequence[Shard], has: Sequence[bool]) -> _Result:
    """Use one row of each box: the first row with statistics."""
    chosen: dict[Box, int] = {}
    unused: list[int] = []
    copies: list[tuple[int, int]] = []
    for row, shard in enumerate(shards):
        known = chosen.get(shard.box)
        if known is None or not has[known]:
            if known is not None:
                unused.append(known)
            chosen[shard.box] = row
            continue
        unused.append(row)
        if has[row]:
            copies.append((known, row))
    shape = shards[0].global_shape
    cover = UncoveredCells(shape)
    apart = [cover.add(box) for box in chosen]
    reason = "incomplete" if cover.left else None if all(apart) else "overlap"
    return _Result(reason=reason, unused=tuple(unused), copies=tuple(copies), shape=shape)


def _differ(numbers: pa.Table, one: Ints, other: Ints) -> Mask:
    """For each pair of rows, whether their statistics differ by more than rounding."""
    found = np.zeros(len(one), dtype=np.bool_)
    for name in (*EXACT, *ROUNDED) if len(one) else ():
        column = numbers.column(name).cast(pa.float64(), safe=False)
        values = np.asarray(column.fill_null(np.nan).to_numpy(), dtype=np.float64)
        found |= ~_equal(values[one], values[other], 0.0 if name in EXACT else _TOLERANCE)
    return found


def _equal(a: Floats, b: Floats, tolerance: float) -> Mask:
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(a - b) <= tolerance * np.maximum(np.abs(a), np.abs(b))
    same: Mask = (a == b) | (np.isnan(a) & np.isnan(b)) | near
    return same
