"""Cases of AllZero."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.all_zero import AllZero
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

NAME = "gradient/Net_branch.weight"


def _gradients(*sizes: float) -> Trace:
    """The gradient of one layer at steps 0, 10, 20, ..."""
    trace = Trace()
    for at, size in enumerate(sizes):
        trace.add(10 * at, NAME, "gradient", size * np.linspace(-1, 1, 16))
    return trace


FIRES = Case(
    story="a branch whose output is detached from the loss: its gradient is zero at every step.",
    rule=AllZero(),
    trace=lambda: _gradients(0.0, 0.0, 0.0),
    found=((20, NAME),),
)
QUIET = Case(
    story="a residual branch that starts at zero: its gradient is zero at the first step only.",
    rule=AllZero(),
    trace=lambda: _gradients(0.0, 0.1, 0.1),
)
