"""Cases of ProfilerReport."""

from __future__ import annotations

from tdcore.rules.cases import input_bound
from tdcore.rules.cases.case import Case
from tdcore.rules.library.profiler_report import ProfilerReport

__all__ = ["FIRES", "QUIET"]

FIRES = Case(
    story="a training waits for data for 100 ms of each step of 200 ms, which InputBound finds.",
    rule=ProfilerReport(),
    trace=input_bound.FIRES.trace,
    found=input_bound.FIRES.found,
)
QUIET = Case(
    story="the training waits for data for 20 ms of each step of 200 ms.",
    rule=ProfilerReport(),
    trace=input_bound.QUIET.trace,
)
