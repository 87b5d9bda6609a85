"""Cases of SimilarAcrossRuns."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.similar_across_runs import SimilarAcrossRuns
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

W = "Net_fc.weight"


def _weights(noise: float) -> Trace:
    """Weights at three steps, with a difference of `noise` from step 1 on."""
    trace = Trace()
    for step in range(3):
        values = np.linspace(-1, 1, 16) * (1 + step)
        trace.add(step, W, "weight", values + (noise if step else 0.0), payload=True)
    return trace


FIRES = Case(
    story="two runs that begin with the same weights and differ by 0.001 from step 1 on.",
    rule=SimilarAcrossRuns(other_trials=[_weights(0.0)]),
    trace=lambda: _weights(1e-3),
    found=((1, W), (2, W)),
)
QUIET = Case(
    story="two runs that agree to rounding.",
    rule=SimilarAcrossRuns(other_trials=[_weights(0.0)]),
    trace=lambda: _weights(1e-9),
)
