"""Cases of Underfit."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.underfit import Underfit
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

LOSS = "CrossEntropyLoss_output_0"


def _losses(floor: float) -> Trace:
    """401 steps of a noisy loss that falls from ln 10 towards `floor`, saved every second step."""
    noise = np.random.default_rng(0).normal(0.0, 0.02, 201)
    trace = Trace()
    for at in range(201):
        trace.add(2 * at, LOSS, "loss", floor + (2.303 - floor) * np.exp(-at / 15) + noise[at])
    return trace


FIRES = Case(
    story="a loss that goes from 2.3 to 2.0 and stays there.",
    rule=Underfit(),
    trace=lambda: _losses(2.0),
    found=((318, LOSS),),
)
QUIET = Case(
    story="the same noise on a loss that converges at 0.3.",
    rule=Underfit(),
    trace=lambda: _losses(0.3),
)
