"""Cases of TreeDepth."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.tree_depth import TreeDepth
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _chain(depth: int) -> Trace:
    """One tree whose right children are split `depth` times: nodes 0, (1, 2), (3, 4), ..."""
    nodes = np.arange(2 * depth + 1)
    split = (nodes % 2 == 0) & (nodes < 2 * depth)
    trace = Trace()
    for name, values in (
        ("Tree", np.zeros(nodes.size)),
        ("ID", nodes),
        ("Yes", np.where(split, nodes + 1, np.nan)),
        ("No", np.where(split, nodes + 2, np.nan)),
    ):
        trace.add(10, f"trees/{name}", "custom", values, payload=True)
    return trace


FIRES = Case(
    story="a chain of five splits, deeper than 4 although log2 of its largest node number is 3.3.",
    rule=TreeDepth(),
    trace=lambda: _chain(5),
    found=((10, "trees/ID"),),
)
QUIET = Case(
    story="a chain of four splits.",
    rule=TreeDepth(),
    trace=lambda: _chain(4),
)
