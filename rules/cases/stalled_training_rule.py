"""Cases of StalledTrainingRule."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.stalled_training_rule import StalledTrainingRule
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

LOSS = "CrossEntropyLoss_output_0"


def _losses(pause_seconds: int) -> Trace:
    """A loss each second for ten steps, with a pause after step 4."""
    trace = Trace()
    for step in range(10):
        trace.add(step, LOSS, "loss", 1.0)
        trace.rows[-1]["time_ns"] += 1_000_000_000 * (pause_seconds if step > 4 else 0)
    return trace


FIRES = Case(
    story="nothing is saved for 40 minutes after step 4.",
    rule=StalledTrainingRule(),
    trace=lambda: _losses(2400),
    found=((4, ""),),
)
QUIET = Case(
    story="a pause of 20 minutes, shorter than the threshold.",
    rule=StalledTrainingRule(),
    trace=lambda: _losses(1200),
)
