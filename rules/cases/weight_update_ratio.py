"""Cases of WeightUpdateRatio."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.weight_update_ratio import WeightUpdateRatio
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

NAME = "Net_fc.weight"


def _weights(*sizes: float) -> Trace:
    trace = Trace()
    for step, size in enumerate(sizes):
        trace.add(step, NAME, "weight", size * np.linspace(-1, 1, 16), payload=True)
    return trace


FIRES = Case(
    story="a weight that becomes twenty times as large in one step.",
    rule=WeightUpdateRatio(),
    trace=lambda: _weights(1.0, 1.001, 20.0, 20.02),
    found=((2, NAME),),
)
QUIET = Case(
    story="a weight that starts at zero, and then moves by a thousandth of its size per step.",
    rule=WeightUpdateRatio(),
    trace=lambda: _weights(0.0, 0.01, 0.01001, 0.01002),
)
