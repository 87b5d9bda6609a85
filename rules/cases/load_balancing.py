"""Cases of LoadBalancing."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.load_balancing import LoadBalancing
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _two_gpus(first: float, second: float) -> Trace:
    """Ten minutes of samples of a machine with two GPUs."""
    trace = Trace()
    for number in range(1201):
        used = (first + number % 5, second + number % 5)
        trace.add_sample(gpus=[{"index": at, "utilization_percent": each} for at, each in enumerate(used)])
    return trace


FIRES = Case(
    story="for ten minutes, the first GPU is 90 % busy and the second GPU 40 %.",
    rule=LoadBalancing(),
    trace=lambda: _two_gpus(90.0, 40.0),
    found=((1080, "node-1"), (1200, "node-1")),
)
QUIET = Case(
    story="both GPUs are 90 % busy.",
    rule=LoadBalancing(),
    trace=lambda: _two_gpus(90.0, 90.0),
)
