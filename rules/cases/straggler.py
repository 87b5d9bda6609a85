"""Cases of Straggler."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.straggler import Straggler
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _ranks(lag_ms: float) -> Trace:
    """Two ranks with steps of 200 ms: the second one needs longer for its data, and the first one waits."""
    trace = Trace()
    for step in range(126):
        trace.add_step_time(step, worker="worker_0", data=5, forward=60, backward=135, data_waits=1)
        trace.add_step_time(
            step, worker="worker_1", data=5 + lag_ms, forward=60, backward=135 - lag_ms, data_waits=1
        )
    return trace


FIRES = Case(
    story="the second of two ranks waits for its data for 80 ms longer, and the first one waits for it in "
    "the backward pass.",
    rule=Straggler(),
    trace=lambda: _ranks(80.0),
    found=((123, ""),),
)
QUIET = Case(
    story="the second rank waits for its data for 10 ms longer.",
    rule=Straggler(),
    trace=lambda: _ranks(10.0),
)
