"""Cases of StepOutlier."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.step_outlier import StepOutlier
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _steps(slow_ms: float) -> Trace:
    """Steps of 50 ms; every twentieth step has a longer wait for data."""
    trace = Trace()
    for step in range(602):
        wait = slow_ms if step % 20 == 19 else 0.0
        trace.add_step_time(step, data=5 + wait, forward=20, backward=25 + step % 3, data_waits=1)
    return trace


FIRES = Case(
    story="every twentieth step waits for its data for half a second.",
    rule=StepOutlier(),
    trace=lambda: _steps(500.0),
    found=((467, ""), (499, ""), (531, ""), (595, "")),
)
QUIET = Case(
    story="all steps take about 50 ms.",
    rule=StepOutlier(),
    trace=lambda: _steps(0.0),
)
