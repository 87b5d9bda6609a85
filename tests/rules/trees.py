"""A greedy decision tree as a table of nodes, and runs that record such tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook

Floats = npt.NDArray[np.float64]
Table = dict[str, Floats]


def two_moons(*, noise: float = 0.4, features: int = 6) -> tuple[Floats, Floats]:
    """Return 200 points of two overlapping half circles, in the first two features, and labels 0 and 1."""
    random = np.random.default_rng(0)
    labels = np.arange(200) % 2
    angle = np.pi * random.random(200)
    points = np.stack([np.cos(angle) + labels, np.sin(angle) * (1 - 2 * labels) + 0.5 * labels], axis=1)
    rest = random.normal(size=(200, features - 2))
    return np.hstack([points + noise * random.normal(size=points.shape), rest]), labels.astype(np.float64)


def grown_tree(points: Floats, labels: Floats, *, max_depth: int) -> Table:
    """Split greedily by squared error until leaves are pure or max_depth is reached.

    The table has the columns Tree, ID, Feature, Yes, No, Gain and one row per node; leaves have NaN.
    """
    rows: list[list[float]] = []
    waiting = [(np.arange(labels.size), 0)]
    for node, (inside, depth) in enumerate(waiting):  # grows during the iteration
        feature, cut, gain = _best_split(points[inside], labels[inside])
        if depth == max_depth or gain <= 0:
            rows.append([0, node, np.nan, np.nan, np.nan, np.nan])
            continue
        below = points[inside, feature] < cut
        rows.append([0, node, feature, len(waiting), len(waiting) + 1, gain])
        waiting += [(inside[below], depth + 1), (inside[~below], depth + 1)]
    return dict(zip(("Tree", "ID", "Feature", "Yes", "No", "Gain"), np.array(rows).T, strict=True))


def _best_split(points: Floats, labels: Floats) -> tuple[int, float, float]:
    """Return (feature, cut, reduction of the squared error); the reduction is 0 if no cut helps."""
    best = (0, 0.0, 0.0)
    if labels.std() == 0:
        return best
    for feature in range(points.shape[1]):
        order = np.argsort(points[:, feature], kind="stable")
        total, number = np.cumsum(labels[order])[:-1], np.arange(1, labels.size)
        rest = labels.sum() - total
        gains = total**2 / number + rest**2 / (labels.size - number) - labels.sum() ** 2 / labels.size
        at = int(np.argmax(gains))
        if gains[at] > best[2]:
            best = (feature, float(points[order[at : at + 2], feature].mean()), float(gains[at]))
    return best


def importances(table: Table, features: int) -> dict[str, float]:
    """Return the share of all splits by feature, which smdebug calls "weight"."""
    used = table["Feature"][~np.isnan(table["Feature"])].astype(np.int64)
    counts = np.bincount(used, minlength=features)
    return {f"f{at}": float(count / counts.sum()) for at, count in enumerate(counts)}


def save_trees(place: Path, tables: list[Table], features: int = 0) -> Path:
    """Record one table per step, and importances of all features, under the names of smdebug."""
    hook = Hook(
        place,
        save_config=td.SaveConfig(save_interval=1),
        reduction_config=td.ReductionConfig(save_raw_tensor=True),
        ring=td.RingConfig(ring_bytes=1 << 22),
        flusher="thread",
    )
    hook.register_module(nn.Linear(1, 1))
    try:
        for table in tables:
            hook.step()
            for name, values in table.items():
                hook.save_tensor(f"trees/{name}", values, "trees")
            for feature, share in (importances(table, features) if features else {}).items():
                value: Any = np.array(share)
                hook.save_tensor(f"feature_importance/weight/{feature}", value, "feature_importance")
    finally:
        hook.close()
    return place
