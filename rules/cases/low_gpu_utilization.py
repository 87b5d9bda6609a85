"""Cases of LowGPUUtilization."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.low_gpu_utilization import LowGPUUtilization
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _utilization(percent: float) -> Trace:
    """Ten minutes of samples of one GPU."""
    trace = Trace()
    for number in range(1201):
        trace.add_sample(gpus=[{"index": 0, "utilization_percent": percent + number % 3}])
    return trace


FIRES = Case(
    story="a GPU with a utilization of 20 % for ten minutes.",
    rule=LowGPUUtilization(),
    trace=lambda: _utilization(20.0),
    found=((1080, "node-1/gpu0"), (1200, "node-1/gpu0")),
)
QUIET = Case(
    story="a GPU with a utilization of 95 %.",
    rule=LowGPUUtilization(),
    trace=lambda: _utilization(95.0),
)
