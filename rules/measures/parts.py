"""Parts: rows that hold a part of a sharded tensor, of which other workers hold other parts. Plain values."""

from __future__ import annotations

import math

import numpy as np

from tdcore.rules.window import Mask, Window

__all__ = ["part_rows"]


def part_rows(window: Window, rows: Mask) -> Mask:
    """Which of `rows` are parts; copies of a whole tensor and summands of one are not.

    The rule that asks names "shard" and "shape" in its `columns`.
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
