"""Cases of MaxInitializationTime."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.max_initialization_time import MaxInitializationTime
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _start(minutes: float) -> Trace:
    """Samples every 30 seconds, and steps that begin some minutes after the start of the process."""
    trace = Trace()
    start_ns = 1_700_000_000_000_000_000
    for number in range(60):
        trace.add_sample(interval_ms=30_000, trainer_seconds=30.0 * number)
    for step in range(3):
        begin = start_ns + round(60e9 * minutes) + step * 10**9
        trace.add_step_time(step, time_ns=begin, forward=400, backward=600)
    return trace


FIRES = Case(
    story="the first step begins 25 minutes after the start of the process.",
    rule=MaxInitializationTime(),
    trace=lambda: _start(25.0),
    found=((0, ""), (43, "node-1")),
)
QUIET = Case(
    story="the first step begins 10 minutes after the start of the process.",
    rule=MaxInitializationTime(),
    trace=lambda: _start(10.0),
)
