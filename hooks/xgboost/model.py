"""BoosterView: features, importance, trees, predictions and SHAP values of an xgboost.Booster.

No method changes the booster. Predictions of boosters other than gbtree come from a copy, because XGBoost
keeps predictions of the data in the booster and the next round of such a booster may use them. Trees are read
from the JSON form of the model, in each round only its new trees. Threads: the training thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tdcore.hooks.boosting.ensemble import Array, UnavailableError
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
            raise UnavailableError("trees: the booster gblinear has no trees")
        booster = self._booster
        rounds = int(booster.num_boosted_rounds())
        update = self._configuration["gradient_booster"].get("gbtree_train_param", {}).get("process_type")
        known, tables = _tables_of.get(booster, (0, []))
        if update != "default" or known > rounds:  # earlier trees may have changed
            known, tables = 0, []
        if known < rounds:
            number = tables[-1]["Tree"][-1] + 1 if tables else 0
            tables = [joined([*tables, _table(booster[known:], int(number))], tuple(COLUMNS))]
            _tables_of[booster] = rounds, tables
        return tables[0]

    def labels(self, data: Any) -> Array:
        """DMatrix.get_label()."""
        found: Array = np.asarray(data.get_label())
        if not found.size:
            raise UnavailableError("labels: validation_data has no labels")
        return found

    def predictions(self, data: Any) -> Array:
        """Booster.predict()."""
        return np.asarray(self._reader.predict(data))

    def shap(self, data: Any) -> Array:
        """Booster.predict(pred_contribs=True)."""
        if self._configuration["learner_train_param"].get("multi_strategy") == "multi_output_tree":
            raise UnavailableError("SHAP values: XGBoost has none for trees with several values per leaf")
        return np.asarray(self._reader.predict(data, pred_contribs=True))


def _table(booster: Any, number: int) -> dict[str, Array]:
    """Columns of all trees of a booster. number: number of the first tree."""
    learner = json.loads(bytes(booster.save_raw(raw_format="json")))["learner"]
    model = learner["gradient_booster"]
    trees = model.get("gbtree", model)["model"]["trees"]
    if any(int(tree["tree_param"]["size_leaf_vector"]) > 1 for tree in trees):
        raise UnavailableError("trees: trees with several values per leaf are not recorded")
    sizes = np.array([len(tree["left_children"]) for tree in trees])
    start = np.repeat(np.cumsum(sizes) - sizes, sizes)  # first node of the tree of each node

    def column(name: str, kind: Any = np.int64) -> Array:
        return np.fromiter(
            chain.from_iterable(tree[name] for tree in trees), dtype=kind, count=int(sizes.sum())
        )

    left, right = column("left_children"), column("right_children")
    reached = np.arange(left.size) == start  # the roots; pruned nodes are not reached
    reached[(start + left)[left >= 0]] = reached[(start + right)[right >= 0]] = True
    leaf = left < 0
    feature = np.where(leaf, -1, column("split_indices"))
    condition = column("split_conditions", np.float64)
    by_category = (column("split_type") == 1) & ~leaf
    # The thresholds of features with whole numbers are rounded up, as in XGBoost's own tables.
    whole = np.flatnonzero(np.array(booster.feature_types or [], dtype=np.str_) == "int")
    ceiled = np.where(np.isin(feature, whole), np.ceil(condition), condition)
    node = np.arange(left.size) - start
    values = {
        "Tree": number + np.repeat(np.arange(sizes.size), sizes),
        "Node": node,
        "ID": node,
        "Feature": feature,
        "Split": np.where(leaf | by_category, np.nan, ceiled),
        "Yes": np.where(leaf, np.nan, np.where(by_category, right, left)),
        "No": np.where(leaf, np.nan, np.where(by_category, left, right)),
        "Missing": np.where(leaf, np.nan, np.where(column("default_left") == 1, left, right)),
        "Gain": np.where(leaf, condition, column("loss_changes", np.float64)),
        "Cover": column("sum_hessian", np.float64),
    }
    found = {name: values[name][reached].astype(kind) for name, kind in COLUMNS.items()}
    found[CATEGORY] = _categories(trees, sizes, reached)
    return found


def _categories(trees: Sequence[Mapping[str, Any]], sizes: Array, reached: Array) -> Array:
    """Rows (row of the table, category)."""
    row_of = np.cumsum(reached) - 1
    rows = []
    for first, tree in zip((np.cumsum(sizes) - sizes).tolist(), trees, strict=True):
        categories = tree["categories"]
        for number, begin, size in zip(
            tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True
        ):
            if reached[first + number]:
                row = int(row_of[first + number])
                rows += [(row, category) for category in categories[begin : begin + size]]
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


# Boosters -> rounds, and the table of their trees in a list; trees of later rounds are appended to it.
_tables_of: WeakKeyDictionary[Any, tuple[int, list[dict[str, Array]]]] = WeakKeyDictionary()
