"""Cases of PoorWeightInitialization."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.poor_weight_initialization import PoorWeightInitialization
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

FIRST = "Net_layers.0_input_0"
LAST = "Net_layers.3_input_0"


def _opening(fading: float, falling: float) -> Trace:
    """Ten steps of four ReLU layers; each passes on `fading` times the signal that it gets."""
    trace = Trace()
    values = np.linspace(-1.0, 1.0, 32)
    for step in range(10):
        for layer in range(4):
            name = f"Net_layers.{layer}_input_0"
            trace.add(step, name, "input", fading**layer * values, origin="ReLU")
        trace.add(step, "CrossEntropyLoss_output_0", "loss", 2.3 * falling**step)
    return trace


FIRES = Case(
    story="weights that are ten times too small: activations shrink, and the loss does not fall.",
    rule=PoorWeightInitialization(),
    trace=lambda: _opening(0.1, 1.0),
    found=((9, LAST),),
)
QUIET = Case(
    story="layers with the same differences, as in a pretrained network, and a loss that falls.",
    rule=PoorWeightInitialization(),
    trace=lambda: _opening(0.1, 0.95),
)
