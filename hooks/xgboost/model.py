"""BoosterView: reads features, importance, trees, predictions and SHAP values of an xgboost.Booster.

No method changes the booster. Predictions of boosters other than gbtree come from a copy, because XGBoost
keeps predictions of the data in the booster and the next round of such a booster may use them. Trees are read
from the JSON form of the model, which is faster than trees_to_dataframe. Threads: the training thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import xgboost

from tdcore.hooks.boosting.ensemble import Array, Unavailable
from tdcore.hooks.boosting.settings import flattened
from tdcore.hooks.boosting.tables import CATEGORY, COLUMNS, joined

__all__ = ["BoosterView"]

_TYPES = ("weight", "gain", "cover", "total_gain", "total_cover")
# Entries of Booster.save_config() that are not hyper-parameters.
_NO_SETTINGS = frozenset({"base_score", "num_trees", "debug_synchronize", "max_cached_hist_node"})


class BoosterView:
    """A booster after a round."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    @cached_property
    def _configuration(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(self._booster.save_config())["learner"]
        return found

    @cached_property
    def _kind(self) -> str:
        """Name of the booster: gbtree, dart or gblinear."""
        return str(self._configuration["gradient_booster"]["name"])

    @cached_property
    def _reader(self) -> Any:
        """The booster that computes predictions."""
        return self._booster if self._kind == "gbtree" else self._booster.copy()

    @cached_property
    def features(self) -> Sequence[str]:
        """Names of the features."""
        names = self._booster.feature_names
        return list(names) if names else [f"f{at}" for at in range(self._booster.num_features())]

    @property
    def importance_types(self) -> Sequence[str]:
        """All types; for gblinear only the weights, which are the coefficients."""
        return _TYPES[:1] if self._kind == "gblinear" else _TYPES

    def settings(self) -> Mapping[str, Any]:
        """The configuration of the booster."""
        found = flattened(self._configuration)
        return {name: value for name, value in found.items() if name not in _NO_SETTINGS}

    def importance(self, kind: str) -> Array:
        """Booster.get_score() for all features."""
        scores = self._booster.get_score(importance_type=kind)
        values = [np.asarray(scores.get(name, 0.0), dtype=np.float64) for name in self.features]
        width = max((value.size for value in values), default=1)
        if width == 1:
            return np.array([value.reshape(()) for value in values])
        return np.array([value if value.size == width else np.zeros(width) for value in values])

    def trees(self) -> Mapping[str, Array]:
        """The table of all trees."""
        if self._kind == "gblinear":
            raise Unavailable("trees: the booster gblinear has no trees")
        booster = json.loads(bytes(self._booster.save_raw(raw_format="json")))["learner"]["gradient_booster"]
        trees = booster.get("gbtree", booster)["model"]["trees"]
        types = self._booster.feature_types
        whole = [at for at, kind in enumerate(types or ()) if kind == "int"]
        tables = [_table(number, tree, np.array(whole, dtype=np.int64)) for number, tree in enumerate(trees)]
        return joined(tables, tuple(COLUMNS))

    def labels(self, data: Any) -> Array:
        """DMatrix.get_label()."""
        found: Array = np.asarray(data.get_label())
        if not found.size:
            raise Unavailable("labels: validation_data has no labels")
        return found

    def predictions(self, data: Any) -> Array:
        """Booster.predict()."""
        return np.asarray(self._reader.predict(data))

    def shap(self, data: Any) -> Array:
        """Booster.predict(pred_contribs=True)."""
        if self._kind == "dart":
            raise Unavailable("SHAP values: XGBoost does not compute them for the booster dart while it trains")
        return np.asarray(self._reader.predict(data, pred_contribs=True))


def _table(number: int, tree: Mapping[str, Any], whole: Array) -> dict[str, Array]:
    """Columns of one tree. whole: features with whole numbers, whose thresholds XGBoost rounds up."""
    left, right = np.array(tree["left_children"]), np.array(tree["right_children"])
    if int(tree["tree_param"]["size_leaf_vector"]) > 1:
        raise Unavailable("trees: trees with several values per leaf are not recorded")
    reached = np.zeros(left.size, dtype=np.bool_)  # without nodes that were pruned
    reached[0] = True
    reached[left[left >= 0]] = reached[right[right >= 0]] = True
    node = np.flatnonzero(reached)
    leaf = left[node] < 0
    feature = np.where(leaf, -1, np.array(tree["split_indices"])[node])
    condition = np.array(tree["split_conditions"], dtype=np.float64)[node]
    by_category = (np.array(tree["split_type"])[node] == 1) & ~leaf
    ceiled = np.where(np.isin(feature, whole), np.ceil(condition), condition)
    yes = np.where(by_category, right[node], left[node])
    no = np.where(by_category, left[node], right[node])
    default_left = np.array(tree["default_left"])[node] == 1
    missing = np.where(default_left, left[node], right[node])
    values = {
        "Tree": np.full(node.size, number),
        "Node": node,
        "ID": node,
        "Feature": feature,
        "Split": np.where(leaf | by_category, np.nan, ceiled),
        "Yes": np.where(leaf, np.nan, yes),
        "No": np.where(leaf, np.nan, no),
        "Missing": np.where(leaf, np.nan, missing),
        "Gain": np.where(leaf, condition, np.array(tree["loss_changes"], dtype=np.float64)[node]),
        "Cover": np.array(tree["sum_hessian"], dtype=np.float64)[node],
    }
    found = {name: values[name].astype(kind) for name, kind in COLUMNS.items()}
    if tree["categories"]:
        found[CATEGORY] = _categories(tree, node)
    return found


def _categories(tree: Mapping[str, Any], node: Array) -> Array:
    """Rows (row of the table, category)."""
    row_of = {int(number): row for row, number in enumerate(node)}
    categories = tree["categories"]
    parts = zip(
        tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True
    )
    rows = [
        (row_of[number], category)
        for number, start, size in parts
        if number in row_of
        for category in categories[start : start + size]
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 2)
