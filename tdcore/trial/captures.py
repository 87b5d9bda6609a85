"""Captures: rows of the index grouped into tensors.

A row is one part of one tensor at one step. A large tensor has several parts, and one name may be saved twice
at the same step. A *capture* is one tensor at one step, of one worker and call. If the tensor was saved
several times, the capture is the last complete one. Vectorised pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.trial.index import Index, Rows

__all__ = ["Captures", "capture_columns", "joined_key", "ordered_key", "resolve"]

_COLUMNS = ("name", "call", "parts", "ticket", "seq")  # that resolve() reads unless all rows are plain
_KEY = ("name", "worker", "attempt", "mode", "step", "call")
_MAX_KEY = 1 << 62

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Captures:
    """A list of captures.

    Attributes:
        rows: Row numbers; the parts of one capture are adjacent and in order.
        starts: Position in `rows` where each capture begins.
        complete: Whether each capture has all of its parts.
    """

    rows: Rows
    starts: Rows
    complete: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def first_rows(self) -> Rows:
        """The row of each capture's first part."""
        if len(self.starts) == len(self.rows):
            return self.rows
        return self.rows[self.starts]

    def taken(self, order: Rows) -> Captures:
        """These captures, in this order."""
        sizes = np.diff(np.append(self.starts, len(self.rows)))[order]
        return Captures(
            rows=_spans(self.rows, self.starts[order], sizes),
            starts=np.cumsum(sizes) - sizes,
            complete=self.complete[order],
        )

    def parts(self, at: int) -> Rows:
        """The rows of one capture, in order of parts."""
        end = self.starts[at + 1] if at + 1 < len(self.starts) else len(self.rows)
        return self.rows[self.starts[at] : end]


def resolve(index: Index, rows: Rows) -> Captures:
    """Captures among `rows`, ordered by step, worker and order of execution."""
    if len(rows) == 0:
        empty = np.empty(0, dtype=np.int64)
        return Captures(rows=empty, starts=empty, complete=np.empty(0, dtype=np.bool_))
    plain = _plain(index, rows)
    if plain is not None:
        return plain
    key = ordered_key(index, rows, _KEY)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    repeated = np.zeros(len(rows), dtype=np.bool_)
    same = ordered[1:] == ordered[:-1]
    repeated[order[1:][same]] = True
    repeated[order[:-1][same]] = True
    grouped = repeated | (index.column("parts")[rows] > 1)
    if not grouped.any():
        captures = _singles(rows)
    else:
        captures = _joined(_singles(rows[~grouped]), _groups(index, rows[grouped], key[grouped]))
    return _in_order(index, captures)


def capture_columns(index: Index, stretches: Mask) -> tuple[str, ...]:
    """The columns that resolve() reads, apart from those of stretches.

    stretches: mask of the stretches with the rows.
    """
    return () if index.is_lazy and _ranks(index, stretches) is not None else _COLUMNS


def _plain(index: Index, rows: Rows) -> Captures | None:
    """Captures of plain rows; None if the rows must be compared with each other."""
    if not index.is_lazy or not bool((rows[1:] > rows[:-1]).all()):
        return None
    of_rows = index.stretches.of(rows)
    used = np.zeros(len(index.stretches), dtype=np.bool_)
    used[of_rows] = True
    ranks = _ranks(index, used)
    if ranks is None:
        return None
    rank = ranks[of_rows]
    if bool((rank[1:] >= rank[:-1]).all()):
        return _singles(rows)
    return _singles(rows[np.argsort(rank, kind="stable")])


def _ranks(index: Index, used: Mask) -> npt.NDArray[np.int64] | None:
    """For each stretch its position among the used stretches, by step, worker and attempt.

    Returns:
        None unless the rows of these stretches are plain (see Catalogue) and no two of the stretches have
        the same step, worker and attempt. Then each row is a capture, and the rows of a stretch are in order.
    """
    if not bool(index.plain_stretches[used].all()):
        return None
    at = np.flatnonzero(used)
    keys = [index.stretches.column(name)[at] for name in ("step", "worker", "attempt")]
    order = np.lexsort(keys[::-1])
    same = np.ones(max(0, len(at) - 1), dtype=np.bool_)
    for key in keys:
        same &= key[order][1:] == key[order][:-1]
    if same.any():
        return None
    ranks = np.zeros(len(used), dtype=np.int64)
    ranks[at[order]] = np.arange(len(at))
    return ranks


def _singles(rows: Rows) -> Captures:
    return Captures(
        rows=rows, starts=np.arange(len(rows), dtype=np.int64), complete=np.ones(len(rows), dtype=np.bool_)
    )


def _joined(a: Captures, b: Captures) -> Captures:
    return Captures(
        rows=np.concatenate([a.rows, b.rows]),
        starts=np.concatenate([a.starts, b.starts + len(a.rows)]),
        complete=np.concatenate([a.complete, b.complete]),
    )


def _groups(index: Index, rows: Rows, key: npt.NDArray[np.int64]) -> Captures:
    """The last complete set of parts of each key; if none is complete, the last set."""
    ticket, seq, part, parts = (index.column(name)[rows] for name in ("ticket", "seq", "part", "parts"))
    order = np.lexsort([part, seq, ticket, key])
    rows, key, part, parts = rows[order], key[order], part[order], parts[order]
    new = np.ones(len(rows), dtype=np.bool_)
    new[1:] = (key[1:] != key[:-1]) | (part[1:] <= part[:-1]) | (parts[1:] != parts[:-1])
    starts = np.flatnonzero(new)
    sizes = np.diff(np.append(starts, len(rows)))
    complete = (part[starts] == 0) & (sizes == parts[starts])
    of_set = key[starts]
    # Sets are in order, so the set with the largest (complete, position) is used for each key.
    rank = np.lexsort([np.arange(len(starts)), complete, of_set])
    last = np.ones(len(starts), dtype=np.bool_)
    last[:-1] = of_set[rank][1:] != of_set[rank][:-1]
    chosen = np.sort(rank[last])
    return Captures(
        rows=_spans(rows, starts[chosen], sizes[chosen]),
        starts=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes[chosen])[:-1]]),
        complete=complete[chosen],
    )


def _in_order(index: Index, captures: Captures) -> Captures:
    first = captures.first_rows
    keys = [index.column(name)[first] for name in ("step", "worker", "attempt", "ticket", "seq")]
    if _sorted(keys):
        return captures
    return captures.taken(np.lexsort(keys[::-1]))


def _spans(rows: Rows, starts: Rows, sizes: Rows) -> Rows:
    """rows[start : start + size] for each pair, one after the other."""
    offsets = np.arange(int(sizes.sum()), dtype=np.int64) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    found: Rows = rows[np.repeat(starts, sizes) + offsets]
    return found


def _sorted(keys: list[npt.NDArray[Any]]) -> bool:
    """Whether rows are sorted by these keys, the first one first."""
    equal = np.ones(len(keys[0]) - 1, dtype=np.bool_)
    for key in keys:
        if np.any(equal & (key[1:] < key[:-1])):
            return False
        equal &= key[1:] == key[:-1]
    return True


def ordered_key(index: Index, rows: Rows, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """One number per row, ordered like the tuples of these narrow columns; equal only for equal tuples."""
    return joined_key([index.column(name)[rows] for name in names])


def joined_key(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    """One number per row, ordered like the tuples of the columns, and equal only for equal tuples."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    size = 1
    for column in columns:
        values = column.astype(np.int64)
        low, high = int(values.min()), int(values.max())
        if (high - low + 1) > _MAX_KEY // size:
            _, values = np.unique(values, return_inverse=True)
            low, high = 0, int(values.max())
        if (high - low + 1) > _MAX_KEY // size:
            _, key = np.unique(key, return_inverse=True)
            size = int(key.max()) + 1
        if high > low:
            key = key * (high - low + 1) + (values - low)
            size *= high - low + 1
    return key
