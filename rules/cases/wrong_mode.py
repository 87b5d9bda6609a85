"""Cases of WrongMode."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.wrong_mode import WrongMode
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

NAME = "Net_fc.weight"


def _training(*, updated: bool) -> Trace:
    """Four training steps, then three steps of an evaluation, in which the weight may change."""
    trace = Trace()
    for step in range(7):
        evaluated = step >= 4
        size = 1 + 0.01 * (min(step, 4) if evaluated and not updated else step)
        trace.add(
            step,
            NAME,
            "weight",
            size * np.linspace(0, 1, 8),
            mode="EVAL" if evaluated else "TRAIN",
            mode_step=step - 4 if evaluated else step,
        )
    return trace


FIRES = Case(
    story="an optimizer.step() that was left in the validation loop: weights change from batch to batch.",
    rule=WrongMode(),
    trace=lambda: _training(updated=True),
    found=((6, NAME),),
)
QUIET = Case(
    story="a validation that does not change the weights.",
    rule=WrongMode(),
    trace=lambda: _training(updated=False),
)
