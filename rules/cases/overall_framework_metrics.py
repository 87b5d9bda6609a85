"""Case of OverallFrameworkMetrics, which never fires."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.overall_framework_metrics import OverallFrameworkMetrics
from tdcore.rules.trace import Trace

__all__ = ["QUIET"]


def _steps() -> Trace:
    """Training steps of 200 ms, and evaluation steps of 50 ms."""
    trace = Trace()
    for step in range(90):
        trace.add_step_time(step, data=20, forward=60, backward=120, data_waits=1)
    for step in range(10):
        trace.add_step_time(90 + step, mode="EVAL", mode_step=step, forward=50)
    return trace


QUIET = Case(
    story="90 training steps take 200 ms each, and ten steps of an evaluation 50 ms each. The verdict has a "
    "table of the modes, and a table of the phases of each mode.",
    rule=OverallFrameworkMetrics(),
    trace=_steps,
)
