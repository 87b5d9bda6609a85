"""The newest shard of each tensor on each worker, for the text about its sharding. Threads: see Trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.trial.tensor_list import last_rows_of_details

if TYPE_CHECKING:
    from tdcore.trial.reader import Reader, Selection

__all__ = ["newest_shards"]

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_SHARD = ("shard", "shape")  # a row of a shard has both; an absent shard has no shape


def newest_shards(reader: Reader, selection: Selection) -> Ints:
    """The last row that is a shard of a larger tensor, for each tensor and worker that has one.

    Plain files have no shards. Of a file with details, the last row of each tensor is read, and all rows of
    the tensors whose last row is not a shard.
    """
    index = reader.index
    rest = selection.stretches & ~index.plain_stretches
    searched = rest.copy()
    last = np.concatenate([np.empty(0, dtype=np.int64), *last_rows_of_details(reader, selection, rest)])
    searched &= ~rest
    found = [last[_are_shards(reader, last)]]
    others = np.setdiff1d(last, found[0])
    if len(others):
        names = index.among("name", np.unique(index.narrow("name", others)).tolist())
        found += _shards(reader, {**selection.tests, "name": names}, searched)
    found += _shards(reader, selection.tests, rest)
    rows = np.unique(np.concatenate(found))
    places = np.stack([index.narrow(name, rows) for name in ("name", "worker")]).astype(np.int64)
    _, newest = np.unique(places[:, ::-1], axis=1, return_index=True)
    chosen: Ints = np.sort(rows[::-1][newest])
    return chosen


def _are_shards(reader: Reader, rows: Ints) -> Mask:
    found = np.ones(len(rows), dtype=np.bool_)
    for name in _SHARD:
        found &= np.asarray(reader.index.wide(name, rows).is_valid().to_numpy(), dtype=np.bool_)
    return found


def _shards(reader: Reader, tests: Mapping[str, Mask], stretches: Mask) -> Iterator[Ints]:
    """The rows of shards that pass the tests, one piece of a file after the other."""
    if not stretches.any():
        return
    for rows, _, columns in reader.index.scan(tests, stretches, (), _SHARD):
        valid = [np.asarray(columns[name].is_valid().to_numpy(), dtype=np.bool_) for name in _SHARD]
        yield rows[valid[0] & valid[1]]
