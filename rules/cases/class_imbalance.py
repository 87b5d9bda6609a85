"""Cases of ClassImbalance."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.class_imbalance import ClassImbalance
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _labels(rare: int) -> Trace:
    """20 batches of 50 labels, all predicted as class 0. `rare` labels of each batch are of class 1."""
    trace = Trace()
    for step in range(20):
        labels = np.repeat([0, 1], [50 - rare, rare])
        trace.add(step, "labels", "custom", labels, payload=True)
        trace.add(step, "predictions", "custom", np.zeros(50), payload=True)
    return trace


FIRES = Case(
    story="one label in 50 is of class 1: 49 to 1.",
    rule=ClassImbalance(),
    trace=lambda: _labels(1),
    found=((9, "labels"),),
)
QUIET = Case(
    story="five labels in 50 are of class 1: 9 to 1; they are all predicted wrong, but not for long enough.",
    rule=ClassImbalance(),
    trace=lambda: _labels(5),
)
