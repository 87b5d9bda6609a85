"""Groups of rows whose statistics are merged, and the check of groups whose rows are parts of one tensor.

Groups with the same geometry are checked once: the shapes, places and types of their rows are equal, and only
the numbers differ. The numbers of copies are compared for all these groups at the same time. Pure functions,
any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tdcore.trial.captures import joined_key
from tdcore.trial.shard_boxes import Box, Shard, UncoveredCells, shard_of

__all__ = ["CHECKED_COLUMNS", "Groups", "check_parts", "with_column"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_EXACT = (
    "count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count", "min", "max", "abs_min", "abs_max",
)  # fmt: skip
_ROUNDED = ("abs_sum", "square_sum")
_TOLERANCE = 1e-9  # relative difference of sums of the same values in another order
_REASONS = [None, "incomplete", "partial", "overlap", "disagree", "copies_differ"]
CHECKED_COLUMNS = ("worker", "dtype", "shape", "shard", *_EXACT, *_ROUNDED)


def with_column(table: pa.Table, name: str, array: pa.Array) -> pa.Table:
    """The table with another column of this name."""
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at).with_nullable(True), array)


@dataclass(slots=True, kw_only=True)
class Groups:
    """The rows that are used in each group, and the result of each group.

    Attributes:
        starts: Index of the first row of each group.
        sizes: Number of rows of each group.
        absent: For each row, whether its tensor was absent.
        counted: For each row, whether it is used; at least one row of each group is used.
        present: For each group, the number of rows whose tensor was not absent.
        whole: For each group, whether statistics can be computed from the rows that are used.
        reason: For each group, a position in _REASONS; 0 if the reason of the rows is used.
        shape: For each group, a position in `shapes`, whose first element is null; -1: the shape of its row.
        shapes: Shapes of whole tensors.
    """

    starts: Ints
    sizes: Ints
    absent: Mask
    counted: Mask
    present: Ints
    whole: Mask
    reason: Ints
    shape: Ints
    shapes: list[tuple[int, ...] | None]

    @classmethod
    def of(cls, table: pa.Table, starts: Ints) -> Groups:
        """Groups that were not checked. table: rows in groups, by rank."""
        status = table.column("status").cast(pa.string())
        absent = np.asarray(pc.equal(status, "absent").to_numpy(), dtype=np.bool_)
        sizes = np.diff(np.append(starts, len(table)))
        present = np.add.reduceat((~absent).astype(np.int64), starts)
        found = cls(
            starts=starts,
            sizes=sizes,
            absent=absent,
            counted=~absent | np.repeat(present == 0, sizes),
            present=present,
            whole=np.ones(len(starts), dtype=np.bool_),
            reason=np.zeros(len(starts), dtype=np.int64),
            shape=np.full(len(starts), -1, dtype=np.int64),
            shapes=[None],
        )
        found.shape[(present > 1) & ~found._is_sharded(table)] = 0
        return found

    def _is_sharded(self, table: pa.Table) -> Mask:
        shard = table.column("shard")
        if shard.null_count == len(shard):
            return np.zeros(len(self.starts), dtype=np.bool_)
        is_part = np.asarray(shard.is_valid().to_numpy(), dtype=np.bool_)
        found: Mask = np.logical_or.reduceat(is_part, self.starts)
        return found

    def is_checked(self, table: pa.Table) -> Mask:
        """Mask of the groups whose rows are parts of a tensor."""
        return self._is_sharded(table) & (self.present > 0)

    def with_results(self, table: pa.Table) -> pa.Table:
        """The table of groups with the status, reason and shape of each group."""
        if not self.whole.all():
            lost = pc.if_else(pa.array(self.whole), table.column("status").cast(pa.string()), "lost")
            table = with_column(table, "status", lost.combine_chunks().dictionary_encode())
        if self.reason.any():
            given = pa.array(_REASONS, pa.string()).take(pa.array(self.reason))
            reason = pc.if_else(pa.array(self.reason > 0), given, table.column("reason").cast(pa.string()))
            table = with_column(table, "reason", reason.combine_chunks().dictionary_encode())
        if (self.shape >= 0).any():
            column = table.column("shape")
            shapes = pa.array(self.shapes, column.type).take(pa.array(np.maximum(self.shape, 0)))
            table = with_column(table, "shape", pc.if_else(pa.array(self.shape >= 0), shapes, column))
        return table


def check_parts(parts: pa.Table, rows: Ints, checked: Ints, groups: Groups) -> None:
    """Check the groups whose rows are parts of a tensor, and set their results.

    Args:
        parts: The columns CHECKED_COLUMNS of all rows of these groups whose tensor was not absent.
        rows: For each of these rows, its number among the rows of all groups.
        checked: The numbers of the checked groups.
        groups: Gets the results.
    """
    sizes = groups.present[checked]
    first = np.cumsum(sizes) - sizes  # of each checked group, in `parts`
    has = np.asarray(parts.column("count").is_valid().to_numpy(), dtype=np.bool_)
    geometry = joined_key([*_geometry(parts), has])
    numbers = {
        name: np.asarray(parts.column(name).cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy())
        for name in (*_EXACT, *_ROUNDED)
    }
    geometries = _Geometries(parts, has)
    for size in np.unique(sizes).tolist():
        alike = np.flatnonzero(sizes == size)
        places = first[alike][:, None] + np.arange(size)
        _, one, inverse = np.unique(geometry[places], axis=0, return_index=True, return_inverse=True)
        for number, example in enumerate(one.tolist()):
            mine = np.flatnonzero(np.ravel(inverse) == number)
            result = geometries.check(places[example])
            _apply(result, places[mine], rows, checked[alike[mine]], numbers, groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """Result of the check of one geometry.

    Attributes:
        lost: The reason why statistics cannot be computed; None if they can.
        shape: Shape of the whole tensor; None if `lost` is "disagree" or "partial".
        unused: Rows of the group that are not used, by position in the group.
        copies: Pairs of rows that must have equal statistics, by position in the group.
    """

    lost: str | None
    shape: tuple[int, ...] | None
    unused: list[int]
    copies: list[tuple[int, int]]


def _apply(
    result: _Result,
    places: Ints,
    rows: Ints,
    of_groups: Ints,
    numbers: dict[str, npt.NDArray[np.float64]],
    groups: Groups,
) -> None:
    """Set the results of all groups of one geometry. places: their rows in `parts`, one line per group."""
    groups.counted[rows[places[:, result.unused]]] = False
    if result.lost != "disagree" and result.lost != "partial":
        if result.shape not in groups.shapes:
            groups.shapes.append(result.shape)
        groups.shape[of_groups] = groups.shapes.index(result.shape)
    for known, copy in result.copies:
        differ = _differ(places[:, known], places[:, copy], numbers)
        groups.reason[of_groups[differ]] = _REASONS.index("copies_differ")
    if result.lost is not None:
        groups.whole[of_groups] = False
        groups.reason[of_groups] = _REASONS.index(result.lost)


def _differ(one: Ints, other: Ints, numbers: dict[str, npt.NDArray[np.float64]]) -> Mask:
    """Mask of the pairs of rows with different statistics."""
    differ = np.zeros(len(one), dtype=np.bool_)
    with np.errstate(all="ignore"):
        for name, column in numbers.items():
            a, b = column[one], column[other]
            near = np.abs(a - b) <= _TOLERANCE * np.maximum(np.abs(a), np.abs(b))
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            differ |= ~(same | near) if name in _ROUNDED else ~same
    return differ


class _Geometries:
    """Checker of geometries. parts, has: the rows, and whether they have statistics."""

    def __init__(self, parts: pa.Table, has: Mask) -> None:
        self._parts = parts
        self._has = has
        self._covered: dict[tuple[Box, ...], str | None] = {}

    def check(self, rows: Ints) -> _Result:
        """Check one group. rows: its rows."""
        columns = ("worker", "dtype", "shape", "shard")
        found = self._parts.select(columns).take(pa.array(rows)).to_pylist()
        shards = [
            None
            if row["shape"] is None
            else shard_of(row["worker"], row["shard"], row["shape"], "statistics of a tensor")
            for row in found
        ]
        lost = _disagreement([row["dtype"] for row in found], shards)
        first = shards[0]
        if lost is not None or first is None:
            return _Result(lost=lost, shape=None, unused=[], copies=[])
        chosen: dict[Box, int] = {}
        unused: list[int] = []
        copies: list[tuple[int, int]] = []
        for at, shard in enumerate(shards):
            assert shard is not None  # else the reason is "disagree"
            known = chosen.get(shard.box)
            if known is None or not self._has[rows[known]]:
                unused += [] if known is None else [known]
                chosen[shard.box] = at
                continue
            unused.append(at)
            if self._has[rows[at]]:
                copies.append((known, at))
        lost = self._gap(first.global_shape, tuple(chosen))
        return _Result(lost=lost, shape=first.global_shape, unused=unused, copies=copies)

    def _gap(self, shape: tuple[int, ...], boxes: tuple[Box, ...]) -> str | None:
        key = (tuple((0, size) for size in shape), *boxes)
        if key not in self._covered:
            cover = UncoveredCells(shape)
            apart = [cover.add(box) for box in boxes]
            self._covered[key] = None if all(apart) else "overlap"
            if cover.left:
                self._covered[key] = "incomplete"
        return self._covered[key]


def _disagreement(dtypes: Sequence[str | None], shards: Sequence[Shard | None]) -> str | None:
    first = shards[0]
    for shard in shards:
        if shard is None or first is None or shard.global_shape != first.global_shape or len(set(dtypes)) > 1:
            return "disagree"
        if shard.partial is not None:
            return "partial"
    return None


def _geometry(parts: pa.Table) -> list[Ints]:
    """Numbers of each row that are equal if type, shape and place in the tensor are equal."""
    shard = parts.column("shard")
    fields = [pc.struct_field(shard, name) for name in ("global_shape", "offset", "partial")]
    return [
        _codes(parts.column("dtype")),
        _list_codes(parts.column("shape")),
        np.asarray(shard.is_valid().to_numpy(), dtype=np.int64),
        _list_codes(fields[0]),
        _list_codes(fields[1]),
        _codes(fields[2]),
    ]


def _codes(column: Any) -> Ints:
    """One number per row, equal for equal texts."""
    encoded = column.cast(pa.string()).combine_chunks().dictionary_encode()
    indices = encoded.indices if isinstance(encoded, pa.DictionaryArray) else encoded.chunk(0).indices
    return np.asarray(indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _list_codes(column: pa.ChunkedArray) -> Ints:
    """One number per row, equal for equal lists of integers."""
    lengths = np.asarray(pc.list_value_length(column).fill_null(-1).to_numpy(), dtype=np.int64)
    sizes = np.maximum(lengths, 0)
    flat = pa.chunked_array([pa.array([], pa.int64()), *(chunk.flatten() for chunk in column.chunks)])
    numbers = np.asarray(flat.fill_null(-1).to_numpy(), dtype=np.int64)
    lines = np.zeros((len(lengths), 1 + int(sizes.max(initial=0))), dtype=np.int64)
    lines[:, 0] = lengths
    within = np.arange(len(numbers)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    lines[np.repeat(np.arange(len(lengths)), sizes), 1 + within] = numbers
    return np.ravel(np.unique(lines, axis=0, return_inverse=True)[1]).astype(np.int64)
