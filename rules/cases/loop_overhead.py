"""Cases of LoopOverhead."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.loop_overhead import LoopOverhead
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _steps(rest_ms: float) -> Trace:
    """Steps of 200 ms with a part outside of the model."""
    trace = Trace()
    for step in range(126):
        trace.add_step_time(step, rest=rest_ms, forward=80, backward=120 - rest_ms)
    return trace


FIRES = Case(
    story="the script spends 100 ms of each step of 200 ms with logging.",
    rule=LoopOverhead(),
    trace=lambda: _steps(100.0),
    found=((123, ""),),
)
QUIET = Case(
    story="the script spends 10 ms of each step of 200 ms with logging.",
    rule=LoopOverhead(),
    trace=lambda: _steps(10.0),
)
