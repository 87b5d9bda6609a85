"""Cases of LossSpike."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.loss_spike import LossSpike
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

LOSS = "CrossEntropyLoss_output_0"


def _losses(high: int) -> Trace:
    """101 steps of a noisy loss that falls from 2.3; `high` values from step 60 on are too large."""
    noise = np.random.default_rng(0).lognormal(0.0, 0.2, 101)
    trace = Trace()
    for step in range(101):
        factor = 8.0 if 60 <= step < 60 + high else 1.0
        trace.add(step, LOSS, "loss", factor * (0.3 + 2.0 * np.exp(-step / 15)) * noise[step])
    return trace


FIRES = Case(
    story="a loss with heavy noise that becomes eight times as large for six steps.",
    rule=LossSpike(),
    trace=lambda: _losses(6),
    found=((62, LOSS),),
)
QUIET = Case(
    story="the same loss with one hard batch.",
    rule=LossSpike(),
    trace=lambda: _losses(1),
)
