"""Cases of AbsentGradient."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.absent_gradient import AbsentGradient
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

ENCODER, HEAD = "gradient/Net_encoder.weight", "gradient/Net_head.weight"


def _training(present: range) -> Trace:
    """An encoder whose gradient exists at some of twelve steps, and a head with gradients."""
    trace = Trace()
    for step in range(12):
        if step in present:
            trace.add(step, ENCODER, "gradient", 0.1 * np.linspace(-1, 1, 16))
        else:
            trace.add(step, ENCODER, "gradient", None, status="absent", reason="no_backward")
        trace.add(step, HEAD, "gradient", 0.1 * np.linspace(-1, 1, 16))
    return trace


FIRES = Case(
    story="a detach() between encoder and head: the encoder has no gradient at any of the first ten steps.",
    rule=AbsentGradient(),
    trace=lambda: _training(range(0)),
    found=((9, ENCODER),),
)
QUIET = Case(
    story="an encoder that some batches do not use: it has gradients at the other steps.",
    rule=AbsentGradient(),
    trace=lambda: _training(range(1, 12, 3)),
)
