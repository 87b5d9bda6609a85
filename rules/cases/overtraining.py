"""Cases of Overtraining."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.overtraining import Overtraining
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

LOSS = "CrossEntropyLoss_output_0"


def _epochs(number: int) -> Trace:
    """Epochs of ten training steps and one validation step. Both losses fall for five epochs only."""
    noise = np.random.default_rng(0).normal(0.0, 0.01, 10 * number)
    trace = Trace()
    for epoch in range(number):
        level = 0.3 + 2.0 * 0.5 ** min(epoch, 5)
        for at in range(10):
            step = 11 * epoch + at
            value = level + noise[10 * epoch + at]
            trace.add(step, LOSS, "loss", value, mode="TRAIN", mode_step=10 * epoch + at)
        trace.add(11 * epoch + 10, LOSS, "loss", level + 0.1, mode="EVAL", mode_step=epoch)
    return trace


FIRES = Case(
    story="both losses stop falling after five epochs, and the training continues for 14 more epochs.",
    rule=Overtraining(),
    trace=lambda: _epochs(20),
    found=((196, LOSS),),
)
QUIET = Case(
    story="the same training, ended soon after its losses have converged.",
    rule=Overtraining(),
    trace=lambda: _epochs(10),
)
