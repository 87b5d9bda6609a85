"""Cases of Dataloader."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.dataloader import Dataloader
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _steps(processes: int) -> Trace:
    """Steps of 200 ms that wait for data, on a machine with eight cores."""
    trace = Trace()
    for step in range(126):
        trace.add_step_time(step, data=50, forward=60, backward=90, data_waits=1)
    for _ in range(60):
        trace.add_sample(trainer_processes=1 + processes, core_percent=[30.0] * 8)
    return trace


FIRES = Case(
    story="two processes load data on a machine with eight cores, and the training waits for data.",
    rule=Dataloader(),
    trace=lambda: _steps(2),
    found=((123, ""),),
)
QUIET = Case(
    story="eight processes load data on this machine.",
    rule=Dataloader(),
    trace=lambda: _steps(8),
)
