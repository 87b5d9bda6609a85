"""Cases of BatchSize."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.batch_size import BatchSize
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _usage(memory_gib: int) -> Trace:
    """Ten minutes of samples of a machine with one GPU of 80 GiB."""
    trace = Trace()
    for _ in range(1201):
        gpu = {
            "index": 0,
            "utilization_percent": 40,
            "memory_used": memory_gib << 30,
            "memory_total": 80 << 30,
        }
        trace.add_sample(cpu_percent=20.0, gpus=[gpu])
    return trace


FIRES = Case(
    story="for ten minutes the CPU is 20 % busy, the GPU 40 %, and a tenth of its memory is used.",
    rule=BatchSize(),
    trace=lambda: _usage(8),
    found=((1080, "node-1/gpu0"), (1200, "node-1/gpu0")),
)
QUIET = Case(
    story="the same, but the memory of the GPU is nearly full, so the batch cannot grow.",
    rule=BatchSize(),
    trace=lambda: _usage(72),
)
