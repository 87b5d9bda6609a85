"""Cases of TensorVariance."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.tensor_variance import TensorVariance
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

NAME = "Net_fc.weight"


def _weights(*deviations: float) -> Trace:
    """A weight with these standard deviations at steps 0, 10, 20, ..."""
    trace = Trace()
    for at, deviation in enumerate(deviations):
        trace.add(10 * at, NAME, "weight", deviation * np.tile([-1.0, 1.0], 8))
    return trace


FIRES = Case(
    story="a weight whose standard deviation grows tenfold per saved step. The limit of the variance is 10.",
    rule=TensorVariance(max_threshold=10.0, min_threshold=1e-5),
    trace=lambda: _weights(0.1, 1.0, 10.0),
    found=((20, NAME),),
)
QUIET = Case(
    story="a weight whose variance stays the same.",
    rule=TensorVariance(max_threshold=10.0, min_threshold=1e-5),
    trace=lambda: _weights(0.1, 0.11, 0.12),
)
