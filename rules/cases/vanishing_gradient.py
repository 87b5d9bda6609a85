"""Cases of VanishingGradient."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.vanishing_gradient import VanishingGradient
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _gradients(shrinking: float) -> Trace:
    """Four layers, two steps; each layer passes back `shrinking` times the gradient that it gets."""
    trace = Trace()
    for step in (0, 10):
        for layer in range(4):
            size = 0.05 * shrinking ** (3 - layer)
            values = size * np.linspace(-1, 1, 16)
            trace.add(step, f"gradient/Net_layers.{layer}.weight", "gradient", values)
    return trace


FIRES = Case(
    story="each layer passes back a two-hundredth of its gradient; the first layer gets 3e-9.",
    rule=VanishingGradient(),
    trace=lambda: _gradients(1 / 200),
    found=((0, "gradient/Net_layers.0.weight"), (10, "gradient/Net_layers.0.weight")),
)
QUIET = Case(
    story="the same stack, but each layer passes back half of its gradient; the first layer gets 3e-3.",
    rule=VanishingGradient(),
    trace=lambda: _gradients(1 / 2),
)
