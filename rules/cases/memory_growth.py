"""Cases of MemoryGrowth."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.memory_growth import MemoryGrowth
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _memory(bytes_per_sample: int) -> Trace:
    """Five minutes of samples of a trainer with 2 GiB, and garbage that is collected from time to time."""
    trace = Trace()
    for number in range(601):
        used = (2 << 30) + bytes_per_sample * number + (64 << 20) * (number % 7)
        trace.add_sample(trainer_memory=used, memory_total=64 << 30, memory_available=(60 << 30) - used)
    return trace


FIRES = Case(
    story="a trainer whose memory grows by 2 MiB per second.",
    rule=MemoryGrowth(),
    trace=lambda: _memory(1 << 20),
    found=((600, "node-1"),),
)
QUIET = Case(
    story="a trainer whose memory goes up and down by 400 MiB, but does not grow.",
    rule=MemoryGrowth(),
    trace=lambda: _memory(0),
)
