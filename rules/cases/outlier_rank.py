"""Cases of OutlierRank."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.outlier_rank import OutlierRank
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

NAME = "gradient/Net_fc.weight"


def _ranks(scale: float) -> Trace:
    """Gradients of four ranks over six steps; those of the last one are `scale` times as large."""
    random = np.random.default_rng(0)
    trace = Trace()
    for step in range(6):
        for rank in range(4):
            values = random.normal(0.0, 0.1, 64) * (scale if rank == 3 else 1.0)
            trace.add(step, NAME, "gradient", values, worker=f"worker_{rank}")
    return trace


FIRES = Case(
    story="a rank that does not divide by the batch size: its gradients are 32 times those of the others.",
    rule=OutlierRank(),
    trace=lambda: _ranks(32.0),
    found=((4, NAME),),
)
QUIET = Case(
    story="a rank whose batches are harder: its gradients are 1.5 times those of the others.",
    rule=OutlierRank(),
    trace=lambda: _ranks(1.5),
)
