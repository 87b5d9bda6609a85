"""Data sets for boosting, and the trees of a model in the columns of tdcore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["Data", "make_data", "xgboost_trees"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Data:
    """Rows for training and validation. groups: sizes of the groups of a ranking."""

    train: tuple[Any, Floats]
    validation: tuple[Any, Floats]
    groups: tuple[list[int], list[int]]


def make_data(
    *, classes: int = 2, categorical: bool = False, rows: int = 160, features: int = 5, seed: int = 0
) -> Data:
    """A problem with missing values; classes: 0 for a regression."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(rows, features))
    score = values[:, 0] + values[:, 1] * values[:, 2] + 0.3 * random.normal(size=rows)
    labels = score
    if classes:
        cuts = np.quantile(score, np.arange(1, classes) / classes)
        labels = np.searchsorted(cuts, score).astype(np.float64)
    values[random.random(values.shape) < 0.05] = np.nan
    table: Any = values
    if categorical:
        table = pd.DataFrame(values, columns=[f"x{at}" for at in range(features)])
        table["kind"] = pd.Categorical(random.integers(0, 9, rows))
    half = rows // 2
    first, second = (table[:half], table[half:])
    return Data(
        train=(first, labels[:half]),
        validation=(second, labels[half:]),
        groups=([10] * (half // 10), [10] * ((rows - half) // 10)),
    )


def xgboost_trees(booster: Any) -> dict[str, npt.NDArray[Any]]:
    """Booster.trees_to_dataframe() with nodes and features as numbers, by column."""
    frame = booster.trees_to_dataframe()
    names = booster.feature_names or [f"f{at}" for at in range(booster.num_features())]

    def nodes(column: str) -> Floats:
        parts = [each.split("-")[1] if isinstance(each, str) else np.nan for each in frame[column]]
        return np.array(parts, dtype=np.float64)

    found = {
        "Tree": frame["Tree"].to_numpy(),
        "Node": frame["Node"].to_numpy(),
        "ID": nodes("ID"),
        "Feature": np.array([names.index(each) if each != "Leaf" else -1 for each in frame["Feature"]]),
        "Split": frame["Split"].to_numpy(dtype=np.float64),
        "Yes": nodes("Yes"),
        "No": nodes("No"),
        "Missing": nodes("Missing"),
        "Gain": frame["Gain"].to_numpy(),
        "Cover": frame["Cover"].to_numpy(),
    }
    rows = [
        (row, int(category))
        for row, categories in enumerate(frame["Category"])
        if isinstance(categories, list)
        for category in categories
    ]
    if rows:
        found["Category"] = np.array(rows)
    return found
