"""Cases of Overfit."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.overfit import Overfit
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

LOSS = "CrossEntropyLoss_output_0"


def _epochs(validation: list[float]) -> Trace:
    """Epochs of ten training steps and four validation steps; the training loss halves in each."""
    trace = Trace()
    step = 0
    for epoch, level in enumerate(validation):
        for at in range(10):
            value = 0.5**epoch * (1 + 0.1 * (-1) ** at)
            trace.add(step, LOSS, "loss", value, mode="TRAIN", mode_step=10 * epoch + at)
            step += 1
        for at in range(4):
            value = level * (1 + 0.1 * (-1) ** at)
            trace.add(step, LOSS, "loss", value, mode="EVAL", mode_step=4 * epoch + at)
            step += 1
    return trace


FIRES = Case(
    story="the training loss halves in each epoch, the validation loss rises from the third epoch on.",
    rule=Overfit(),
    trace=lambda: _epochs([1.1, 0.8, 0.85, 0.9, 1.0]),
    found=((69, LOSS),),
)
QUIET = Case(
    story="the validation loss is above the training loss and continues to fall.",
    rule=Overfit(),
    trace=lambda: _epochs([1.1, 0.8, 0.7, 0.65, 0.6]),
)
