"""Cases of ExplodingTensor."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.exploding_tensor import ExplodingTensor
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _growing(limit: float) -> Trace:
    """A loss and a gradient that grow tenfold per step, up to `limit`; beyond it they overflow."""
    trace = Trace()
    for step, size in enumerate((1e1, 1e3, 1e5)):
        overflow = size > limit
        trace.add(step, "gradient/Net_fc.weight", "gradient", np.array([1.0, np.inf if overflow else size]))
        trace.add(step, "CrossEntropyLoss_output_0", "loss", np.nan if overflow else size)
    return trace


FIRES = Case(
    story="gradients that grow a hundredfold per step until one overflows in half precision.",
    rule=ExplodingTensor(),
    trace=lambda: _growing(65504.0),
    found=((2, "gradient/Net_fc.weight"), (2, "CrossEntropyLoss_output_0")),
)
QUIET = Case(
    story="the same growth in single precision: large, but finite.",
    rule=ExplodingTensor(),
    trace=lambda: _growing(3e38),
)
