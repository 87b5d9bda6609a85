"""Cases of UnequalRanks."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.unequal_ranks import UnequalRanks
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

NAME = "Net_input_0"


def _ranks(scale: float) -> Trace:
    """Inputs of two ranks over six steps; those of the second one are `scale` times as large."""
    random = np.random.default_rng(0)
    trace = Trace()
    for step in range(6):
        for rank in range(2):
            values = random.normal(0.0, 1.0, 64) * (scale if rank else 1.0)
            trace.add(step, NAME, "input", values, worker=f"worker_{rank}")
    return trace


FIRES = Case(
    story="a rank whose data set is not normalised: its inputs are 40 times those of the other rank.",
    rule=UnequalRanks(),
    trace=lambda: _ranks(40.0),
    found=((4, NAME),),
)
QUIET = Case(
    story="two ranks with different batches of the same data.",
    rule=UnequalRanks(),
    trace=lambda: _ranks(1.0),
)
