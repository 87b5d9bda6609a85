"""Cases of InputBound."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.input_bound import InputBound
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _steps(wait_ms: float) -> Trace:
    """Steps of 200 ms with a wait for data, on a machine with idle cores."""
    trace = Trace()
    for step in range(126):
        trace.add_step_time(step, data=wait_ms, forward=80, backward=120 - wait_ms, data_waits=1)
    for _ in range(60):
        trace.add_sample(cpu_percent=20.0, iowait_percent=1.0)
    return trace


FIRES = Case(
    story="a training waits for data for 100 ms of each step of 200 ms, while its machine is 20 % busy.",
    rule=InputBound(),
    trace=lambda: _steps(100.0),
    found=((123, ""),),
)
QUIET = Case(
    story="the training waits for data for 20 ms of each step of 200 ms.",
    rule=InputBound(),
    trace=lambda: _steps(20.0),
)
