"""Tables of trees: one row per node, in the columns of XGBoost's trees_to_dataframe, as numbers.

| column | type | meaning |
|---|---|---|
| Tree | int64 | number of the tree |
| Node, ID | int64 | number of the node within its tree |
| Feature | int64 | column of the feature; -1 at a leaf |
| Split | float64 | threshold; NaN at a leaf and at a split by categories |
| Yes, No, Missing | float64 | next node; NaN at a leaf |
| Gain | float64 | gain of the split; at a leaf, its value |
| Cover | float64 | sum of Hessians |
| Category | int64 | rows (row of the table, category) of the splits by categories |
| Value | float64 | value of the node; LightGBM only |
| Count | int64 | number of rows of the training data in the node; LightGBM only |

Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tdcore.hooks.boosting.ensemble import Array

__all__ = ["CATEGORY", "COLUMNS", "FURTHER_COLUMNS", "joined"]

COLUMNS = {
    "Tree": np.int64,
    "Node": np.int64,
    "ID": np.int64,
    "Feature": np.int64,
    "Split": np.float64,
    "Yes": np.float64,
    "No": np.float64,
    "Missing": np.float64,
    "Gain": np.float64,
    "Cover": np.float64,
}
FURTHER_COLUMNS = {"Value": np.float64, "Count": np.int64}
CATEGORY = "Category"  # array with two columns, and with its own number of rows


def joined(tables: Iterable[Mapping[str, Array]], columns: Sequence[str]) -> dict[str, Array]:
    """Join the tables of several trees, in order. Category rows refer to rows of the joined table."""
    parts = list(tables)
    if not parts:
        return {}
    found = {name: np.concatenate([part[name] for part in parts]) for name in columns}
    rows = np.cumsum([0, *(part["Tree"].size for part in parts)])
    moved = [
        part[CATEGORY] + np.array([start, 0])
        for part, start in zip(parts, rows.tolist(), strict=False)
        if part.get(CATEGORY) is not None and part[CATEGORY].size
    ]
    if moved:
        found[CATEGORY] = np.concatenate(moved)
    return found
