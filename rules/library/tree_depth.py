"""TDC115: decision trees that grow too deep, or stay too shallow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.errors import RunError
from tdcore.rules.base import Finding, require
from tdcore.rules.measures.series import groups
from tdcore.rules.requirements import VALUES, Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["TreeDepth", "depths"]

_LINKED = ("Tree", "ID", "Yes", "No")
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeDepth:
    """Trees of an ensemble that are deeper than a limit, or shallower with direction="below".

    What it does:
        Computes the depth of the deepest tree in the saved tables of trees, for each step.

    Why it matters:
        Each level doubles the number of leaves that a tree may have and halves the samples in each leaf, so
        deep trees memorise single samples. Trees far below the allowed depth show that labels or features
        contain little information.

    Decides by:
        The depth is the number of splits on the longest path from a root to a leaf, over all trees of the
        step. The rule fires if the depth > `depth`; with direction="below", if it is < `depth`.

        The depth is computed from four tensors: trees/Tree (the number of the tree), trees/ID (the number of
        the node), and trees/Yes and trees/No (the next node if the condition of the split is true or false).
        If the values of one of these tensors are missing, the depth is log2 of the largest node number in
        trees/ID or trees/Node, as in smdebug. This is correct only for full trees whose nodes are numbered
        level by level.

    Parameters:
        depth: limit of the depth, in splits.
        direction: "above" reports deeper trees, "below" reports shallower trees.

    False alarms:
        - Ensembles that use deep trees on purpose (random forests).
        - Unbalanced trees, if log2 is used: the depth of a chain of 2^k - 1 nodes is larger than k.

    Do:
        Limit max_depth or the number of leaves, or raise min_child_weight or gamma. For shallow trees, check
        features, regularisation and learning rate.

    Source:
        T. Hastie, R. Tibshirani, J. Friedman, The Elements of Statistical Learning, 2009, section 10.11.
    """

    code: ClassVar[str] = "TDC115"
    judged_by: ClassVar[JudgedBy] = "worker"

    depth: float = 4.0
    direction: str = "above"

    def __post_init__(self) -> None:
        require(0 <= self.depth < np.inf, self, "depth", self.depth, "0 or more")
        require(self.direction in ("above", "below"), self, "direction", self.direction, '"above" or "below"')

    def needs(self) -> Need:
        """Tables of trees."""
        return Need(
            what="tables of trees (trees/Tree, trees/ID, trees/Yes and trees/No with their values)",
            captures=(
                CollectionConfig(
                    name="trees",
                    include_regex=("^trees/",),
                    save_config=SaveConfig(save_interval=10),
                    reduction_config=VALUES,
                ),
            ),
            payload=True,
            frameworks=("xgboost", "lightgbm"),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per step whose trees are too deep, or too shallow."""
        columns = window.columns
        rows = np.flatnonzero(columns.where("name", _in_table) & window.ok)
        for _, _, group in groups(columns, rows, "attempt", "worker"):
            steps = columns.ints("step")[group]
            for of_step in np.split(group, np.flatnonzero(np.diff(steps)) + 1):
                tables: dict[str, dict[str, int]] = {}
                for row in of_step.tolist():
                    place, _, column = columns.text("name", row).rpartition("/")
                    tables.setdefault(place, {})[column] = row
                for table in tables.values():
                    yield from self._judge(window, table)

    def _judge(self, window: Window, table: Mapping[str, int]) -> Iterator[Finding]:
        """Judge the trees of one step. table: column -> row of the window."""
        found = self._by_links(window, table) or self._by_number(window, table)
        if found is None:
            window.missing("table of trees without trees/ID and trees/Node", 1)
            return
        depth, row, how = found
        window.judged(1)
        if depth <= self.depth if self.direction == "above" else depth >= self.depth:
            return
        yield window.finding(
            self,
            row,
            numbers={"depth": depth, "limit": self.depth, "direction": self.direction, "by": how},
            why=f"the deepest tree has depth {depth:.4g} (from {how}), {self.direction} the limit of "
            f"{self.depth:g}",
            do="limit max_depth or the number of leaves, or raise min_child_weight or gamma"
            if self.direction == "above"
            else "check features, regularisation and learning rate: the trees find little to split",
        )

    def _by_links(self, window: Window, table: Mapping[str, int]) -> tuple[float, int, str] | None:
        there = window.columns.present("nbytes")
        if not all(name in table and there[table[name]] for name in _LINKED):
            return None
        try:
            tree, node, yes, no = (values for _, values in window.read(table[name] for name in _LINKED))
            return float(depths(tree, node, yes, no).max()), table["ID"], "the links of its nodes"
        except RunError as error:
            window.missing(f"table of trees could not be read ({type(error).__name__})", 1)
        except ValueError as error:
            window.missing(str(error), 1)
        return None

    def _by_number(self, window: Window, table: Mapping[str, int]) -> tuple[float, int, str] | None:
        for name in ("ID", "Node"):
            row = table.get(name)
            if row is not None and window.counted[row]:
                largest = float(window.columns.floats("max")[row])
                if np.isfinite(largest):
                    return float(np.log2(max(largest, 1.0))), row, "log2 of the largest node number"
        return None


def _in_table(name: str) -> bool:
    """Whether a tensor is a column of a table: "trees/ID", or "fold_0/trees/ID" in a cross-validation."""
    place = name.rpartition("/")[0]
    return place == "trees" or place.endswith("/trees")


def depths(tree: Any, node: Any, yes: Any, no: Any) -> _Floats:
    """Depth of each tree, in splits; 0 for a tree with a single leaf.

    All arguments have one entry per node.

    Args:
        tree: Number of the tree.
        node: Number of the node within its tree.
        yes: Number of the first child; NaN or negative at a leaf.
        no: Number of the second child; NaN or negative at a leaf.

    Raises:
        ValueError: The table is not a table of trees.
    """
    columns = [np.asarray(each, dtype=np.float64).ravel() for each in (tree, node, yes, no)]
    if len({each.size for each in columns}) != 1 or not columns[0].size:
        raise ValueError("columns of a table of trees differ in length, or are empty")
    trees, of = np.unique(columns[0], return_inverse=True)
    nodes = columns[1]
    first = of * (1.0 + max(float(np.nanmax(each, initial=0.0)) for each in columns[1:]))  # key of node 0
    key = first + nodes
    order = np.argsort(key)
    parents = [np.flatnonzero(each >= 0) for each in columns[2:]]
    children = [
        _find(key, order, first[rows] + each[rows]) for each, rows in zip(columns[2:], parents, strict=True)
    ]
    parent, child = np.concatenate(parents), np.concatenate(children)
    level = np.full(nodes.size, -1.0)
    level[np.setdiff1d(np.arange(nodes.size), child)] = 0.0
    for depth in range(nodes.size):
        reached = child[level[parent] == depth]
        if not reached.size:
            break
        level[reached] = depth + 1
    if level.min() < 0 or np.unique(child).size != child.size:
        raise ValueError("a table of trees has nodes with two parents, or no root")
    deepest = np.zeros(trees.size)
    np.maximum.at(deepest, of, level)
    return deepest


def _find(key: _Floats, order: npt.NDArray[np.int64], wanted: _Floats) -> npt.NDArray[np.int64]:
    """Positions of the wanted keys in `key`. Raises ValueError if one is missing."""
    at = np.minimum(np.searchsorted(key, wanted, sorter=order), key.size - 1)
    found: npt.NDArray[np.int64] = order[at]
    if not np.array_equal(key[found], wanted):
        raise ValueError("a table of trees links to nodes that it does not contain")
    return found
