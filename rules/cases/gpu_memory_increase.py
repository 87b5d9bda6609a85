"""Cases of GPUMemoryIncrease."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.gpu_memory_increase import GPUMemoryIncrease
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _memory(change_at: int) -> Trace:
    """Ten minutes of samples of a GPU whose memory increases from 40 to 60 of 80 GiB."""
    trace = Trace()
    for number in range(1321):
        used = (60 if number >= change_at else 40) << 30
        trace.add_sample(gpus=[{"index": 0, "memory_used": used, "memory_total": 80 << 30}])
    return trace


FIRES = Case(
    story="the used memory of a GPU increases from half to three quarters after nine minutes.",
    rule=GPUMemoryIncrease(),
    trace=lambda: _memory(1100),
    found=((1200, "node-1/gpu0"),),
)
QUIET = Case(
    story="the same increase in the first minute.",
    rule=GPUMemoryIncrease(),
    trace=lambda: _memory(100),
)
