"""Cases of SaturatedActivation."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.saturated_activation import SaturatedActivation
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

NAME = "Net_act_input_0"


def _inputs(saturated: int) -> Trace:
    """Inputs of a tanh layer of 10 units for 32 samples; saturated units get inputs around +-20."""
    values = np.random.default_rng(0).normal(0.0, 1.0, (32, 10))
    values[:, :saturated] += np.where(np.arange(32) % 2, 20.0, -20.0)[:, np.newaxis]
    trace = Trace()
    trace.add(0, NAME, "input", values, origin="Tanh", payload=True)
    return trace


FIRES = Case(
    story="6 of 10 units of a tanh layer get inputs around -20 and 20 only: 60 % saturated.",
    rule=SaturatedActivation(),
    trace=lambda: _inputs(6),
    found=((0, NAME),),
)
QUIET = Case(
    story="4 of 10 units are saturated; the minimum and maximum of the layer are the same.",
    rule=SaturatedActivation(),
    trace=lambda: _inputs(4),
)
