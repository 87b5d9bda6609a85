"""Case of OverallSystemUsage, which never fires."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.overall_system_usage import OverallSystemUsage
from tdcore.rules.trace import Trace

__all__ = ["QUIET"]


def _samples() -> Trace:
    """Samples of a machine with two cores and one GPU."""
    trace = Trace()
    for number in range(100):
        trace.add_sample(
            cpu_percent=25.0,
            core_percent=[10.0, 40.0],
            gpus=[{"index": 0, "utilization_percent": 90.0 if number < 10 else 30.0}],
        )
    return trace


QUIET = Case(
    story="a machine is 25 % busy, and its GPU 90 % in a tenth of the time, otherwise 30 %. The verdict has "
    "a table with CPU, busiest core and GPU.",
    rule=OverallSystemUsage(),
    trace=_samples,
)
