"""Cases of LossNotDecreasing."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.loss_not_decreasing import LossNotDecreasing
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

LOSS = "CrossEntropyLoss_output_0"


def _losses(floor: float) -> Trace:
    """101 steps of a noisy loss that falls from 2.3 towards `floor`."""
    noise = np.random.default_rng(0).normal(0.0, 0.02, 101)
    trace = Trace()
    for step in range(101):
        trace.add(step, LOSS, "loss", floor + (2.3 - floor) * np.exp(-step / 30) + noise[step])
    return trace


FIRES = Case(
    story="ten classes and a learning rate of zero: the loss stays at ln 10, with some noise.",
    rule=LossNotDecreasing(),
    trace=lambda: _losses(2.3),
    found=((70, LOSS), (80, LOSS), (90, LOSS), (100, LOSS)),
)
QUIET = Case(
    story="the same noise on a loss that falls.",
    rule=LossNotDecreasing(),
    trace=lambda: _losses(0.3),
)
