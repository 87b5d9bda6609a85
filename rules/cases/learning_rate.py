"""Cases of LearningRate."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.learning_rate import LearningRate
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _weights(ratio: float) -> Trace:
    """Twelve steps with a constant loss. Each step changes a weight by `ratio` times its size."""
    trace = Trace()
    values = np.linspace(-1, 1, 16)
    for step in range(12):
        sign = 1 + ratio * (step % 2)
        trace.add(step, "Net_fc.weight", "weight", sign * values, payload=True)
        trace.add(step, "CrossEntropyLoss_output_0", "loss", 2.3)
    return trace


FIRES = Case(
    story="steps that change the weights by half their size, back and forth, while the loss does not fall.",
    rule=LearningRate(),
    trace=lambda: _weights(0.5),
    found=((5, ""),),
)
QUIET = Case(
    story="steps of a thousandth of the size of the weights.",
    rule=LearningRate(),
    trace=lambda: _weights(0.001),
)
