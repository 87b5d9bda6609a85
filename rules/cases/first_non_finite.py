"""Cases of FirstNonFinite."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.first_non_finite import FirstNonFinite
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

OUTPUT = "Net_fc_output_0"


def _steps(limit: float) -> Trace:
    """An output, a loss and a gradient that grow tenfold per step; the output overflows at `limit`."""
    trace = Trace()
    for step, size in enumerate((1e3, 1e4, 1e5)):
        broken = size > limit
        trace.add(step, OUTPUT, "output", np.array([1.0, np.inf if broken else size]))
        trace.add(step, "CrossEntropyLoss_output_0", "loss", np.nan if broken else size)
        trace.add(step, "gradient/Net_fc.weight", "gradient", np.array([np.nan if broken else size, 1.0]))
    return trace


FIRES = Case(
    story="outputs that grow tenfold per step until one overflows; loss and gradients are NaN after it.",
    rule=FirstNonFinite(),
    trace=lambda: _steps(65504.0),
    found=((2, OUTPUT),),
)
QUIET = Case(
    story="the same growth in single precision: large, but finite.",
    rule=FirstNonFinite(),
    trace=lambda: _steps(3e38),
)
