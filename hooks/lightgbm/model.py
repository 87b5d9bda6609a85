"""BoosterView: features, importance, trees, predictions and SHAP values of a lightgbm.Booster.

No method changes the booster. SHAP values come from a copy. Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import lightgbm
import numpy as np

from tdcore.hooks.boosting.ensemble import Array, UnavailableError
from tdcore.hooks.boosting.tables import CATEGORY, COLUMNS, FURTHER_COLUMNS, joined

__all__ = ["BoosterView"]

_THREADS = ("num_threads", "num_thread", "nthread", "nthreads", "n_jobs")
_COLUMNS = {**COLUMNS, **FURTHER_COLUMNS}
_CATEGORIES_AT = len(_COLUMNS)  # position in a row of _rows()


class BoosterView:
    """A booster after a round.

    Args:
        booster: The booster.
        parameters: Parameters of the training.
    """

    importance_types: Sequence[str] = ("split", "gain")

    def __init__(self, booster: Any, parameters: Mapping[str, Any]) -> None:
        self._booster = booster
        self._parameters = parameters

    @cached_property
    def features(self) -> Sequence[str]:
        """Names of the features."""
        return [str(name) for name in self._booster.feature_name()]

    @property
    def _threads(self) -> dict[str, Any]:
        """The training's number of threads, as an argument of predictions.

        Each prediction sets the number of threads of the whole process. With another number, the next round
        would add the losses of the rows in another order.
        """
        given = [self._parameters[name] for name in _THREADS if self._parameters.get(name) is not None]
        return {"num_threads": given[0] if given else 0}

    def settings(self) -> Mapping[str, Any]:
        """Parameters of the training."""
        return dict(self._parameters)

    def importance(self, kind: str) -> Array:
        """Booster.feature_importance()."""
        return np.asarray(self._booster.feature_importance(importance_type=kind), dtype=np.float64)

    def trees(self) -> Mapping[str, Array]:
        """The table of all trees."""
        booster = self._booster
        rounds = int(booster.current_iteration())
        known, table = _tables_of.get(booster, (0, None))
        if "dart" in self._parameters.values() or known > rounds:  # dart scales earlier trees
            known, table = 0, None
        if known < rounds:
            dump = booster.dump_model(num_iteration=-1, start_iteration=known)
            parts = [_table(tree) for tree in dump["tree_info"]]
            table = joined([*([] if table is None else [table]), *parts], tuple(_COLUMNS))
            _tables_of[booster] = rounds, table
        return table or {}

    def labels(self, data: Any) -> Array:
        """The labels of a pair (features, labels)."""
        if data[1] is None:
            raise UnavailableError("labels: validation_data has no labels")
        return np.asarray(data[1])

    def predictions(self, data: Any) -> Array:
        """Booster.predict()."""
        return np.asarray(self._booster.predict(data[0], num_iteration=-1, **self._threads))

    def shap(self, data: Any) -> Array:
        """Booster.predict(pred_contrib=True), with an axis for the classes if there are several."""
        # A copy, because LightGBM ends the process if it computes SHAP values of a booster that is being
        # trained: they need the depth of the trees, which is computed only when a model is loaded.
        loaded = lightgbm.Booster(model_str=self._booster.model_to_string(num_iteration=-1))
        found = loaded.predict(data[0], num_iteration=-1, pred_contrib=True, **self._threads)
        values = np.asarray(found.toarray() if hasattr(found, "toarray") else found)
        models = int(self._booster.num_model_per_iteration())
        return values if models == 1 else values.reshape(values.shape[0], models, -1)


def _table(tree: Mapping[str, Any]) -> dict[str, Array]:
    """Columns of one tree."""
    rows = sorted(_rows(tree), key=lambda row: row[1])
    found = {
        name: np.array([row[at] for row in rows], dtype=kind)
        for at, (name, kind) in enumerate(_COLUMNS.items())
    }
    categories = [(at, each) for at, row in enumerate(rows) for each in row[_CATEGORIES_AT]]
    found[CATEGORY] = np.array(categories, dtype=np.int64).reshape(-1, 2)
    return found


def _rows(tree: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield one row per node: the values of _COLUMNS, and the categories of its split.

    Nodes are numbered from 0, first the splits, then the leaves.
    """
    number, splits, nan = int(tree["tree_index"]), int(tree["num_leaves"]) - 1, np.nan

    def id_of(node: Mapping[str, Any]) -> int:
        if "split_index" in node:
            return int(node["split_index"])
        return splits + int(node.get("leaf_index", 0))

    pending = [tree["tree_structure"]]
    while pending:
        node = pending.pop()
        own = id_of(node)
        if "split_index" not in node:
            value, weight, count = node["leaf_value"], node.get("leaf_weight", nan), node.get("leaf_count", 0)
            yield number, own, own, -1, nan, nan, nan, nan, value, weight, value, count, ()
            continue
        children = node["left_child"], node["right_child"]
        pending += children
        yes, no = map(id_of, children)
        by_category = node["decision_type"] == "=="
        yield (
            number,
            own,
            own,
            node["split_feature"],
            nan if by_category else node["threshold"],
            yes,
            no,
            yes if node["default_left"] else no,
            node["split_gain"],
            node["internal_weight"],
            node["internal_value"],
            node["internal_count"],
            [int(each) for each in str(node["threshold"]).split("||")] if by_category else (),
        )


# Boosters -> rounds, and the table of their trees; trees of later rounds are appended to it.
_tables_of: WeakKeyDictionary[Any, tuple[int, dict[str, Array] | None]] = WeakKeyDictionary()
