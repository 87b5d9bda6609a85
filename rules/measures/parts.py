"""Parts: rows of one worker's part of a sharded tensor. Plain values."""

from __future__ import annotations

import math

import numpy as np

from tdcore.rules.columns import Mask
from tdcore.rules.window import Window

__all__ = ["part_rows"]


def part_rows(window: Window, rows: Mask) -> Mask:
    """Mask of the rows that are parts. A copy of a whole tensor, or a summand of a tensor, is not a part.

    A rule that calls this function must have "shard" and "shape" in its `columns`.
    """
    table = window.columns.table
    found = np.zeros(len(window), dtype=np.bool_)
    some = np.flatnonzero(rows & window.columns.present("shard"))
    shards, shapes = (table.column(name).take(some).to_pylist() for name in ("shard", "shape"))
    found[some] = [
        shape is not None and math.prod(shape) != math.prod(shard["global_shape"] or [])
        for shard, shape in zip(shards, shapes, strict=True)
    ]
    return found
