"""Cases of DeadRelu."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.dead_relu import DeadRelu
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _outputs(dead: int) -> Trace:
    """Outputs of a layer of 10 units for 32 inputs; each living unit is active for 8 of them."""
    values = np.zeros((32, 10))
    for unit in range(dead, 10):
        values[(np.arange(8) * 3 + unit) % 32, unit] = 1.0
    trace = Trace()
    trace.add(0, "Net_act_output_0", "output", values, origin="ReLU", payload=True)
    return trace


FIRES = Case(
    story="6 of 10 units are zero for all 32 inputs: 60 % dead.",
    rule=DeadRelu(),
    trace=lambda: _outputs(6),
    found=((0, "Net_act_output_0"),),
)
QUIET = Case(
    story="4 of 10 units are dead, and the other units are sparse, so the share of zeros is nearly the same.",
    rule=DeadRelu(),
    trace=lambda: _outputs(4),
)
