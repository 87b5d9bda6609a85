"""Cases of PrecisionRisk."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.precision_risk import PrecisionRisk
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

NAME = "gradient/Net_fc.weight"


def _gradients(scale: float) -> Trace:
    """Gradients in float16, of magnitudes around `scale`."""
    trace = Trace()
    values = np.random.default_rng(0).normal(0.0, 1.0, 256)
    for step in range(4):
        trace.add(step, NAME, "gradient", (scale * values).astype(np.float16), dtype="F16")
    return trace


FIRES = Case(
    story="gradients in float16 around 2e-5, without a loss scale: nearly all are below the normal numbers.",
    rule=PrecisionRisk(),
    trace=lambda: _gradients(2e-5),
    found=((2, NAME),),
)
QUIET = Case(
    story="the same gradients with a loss scale of 1024.",
    rule=PrecisionRisk(),
    trace=lambda: _gradients(2e-5 * 1024),
)
