"""Cases of Confusion."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.confusion import Confusion
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _predictions(confused: int) -> Trace:
    """600 pairs of three classes; `confused` of the 200 labels of class 1 are predicted as class 2."""
    labels = np.repeat([0, 1, 2], 200)
    predictions = labels.copy()
    predictions[200 : 200 + confused] = 2
    trace = Trace()
    trace.add(0, "labels", "custom", labels, payload=True)
    trace.add(0, "predictions", "custom", predictions, payload=True)
    return trace


FIRES = Case(
    story="60 of 200 labels of class 1 are predicted as class 2, whose precision falls to 77 %.",
    rule=Confusion(),
    trace=lambda: _predictions(60),
    found=((0, "labels"), (0, "labels")),
)
QUIET = Case(
    story="10 of 200 labels of class 1 are predicted as class 2: each precision is above 95 %.",
    rule=Confusion(),
    trace=lambda: _predictions(10),
)
