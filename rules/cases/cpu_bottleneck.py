"""Cases of CPUBottleneck."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.cpu_bottleneck import CPUBottleneck
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _usage(gpu_percent: float) -> Trace:
    """Thirteen minutes of samples of a machine with one GPU, whose CPU is busy."""
    trace = Trace()
    for _ in range(1561):
        gpu = {"index": 0, "utilization_percent": gpu_percent}
        trace.add_sample(cpu_percent=97.0, core_percent=[97.0] * 4, gpus=[gpu])
    return trace


FIRES = Case(
    story="the CPU is busy, and the GPU is 5 % busy, for thirteen minutes.",
    rule=CPUBottleneck(),
    trace=lambda: _usage(5.0),
    found=((1560, "node-1"),),
)
QUIET = Case(
    story="the CPU is busy, and the GPU is 95 % busy.",
    rule=CPUBottleneck(),
    trace=lambda: _usage(95.0),
)
