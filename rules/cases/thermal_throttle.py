"""Cases of ThermalThrottle."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.thermal_throttle import ThermalThrottle
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _reasons(hot: int, normal: int) -> Trace:
    """Two minutes of samples of one GPU. hot, normal: reasons in one of four samples, and in the others."""
    trace = Trace()
    for number in range(241):
        bits = hot if number % 4 == 0 else normal
        clock = 1200 if bits & 0x40 else 1755
        gpu = {"index": 0, "throttle_reasons": bits, "temperature_celsius": 88.0, "sm_clock_mhz": clock}
        trace.add_sample(gpus=[gpu])
    return trace


FIRES = Case(
    story="a GPU at 88 °C whose clocks are reduced by its temperature in a quarter of the samples.",
    rule=ThermalThrottle(),
    trace=lambda: _reasons(0x48, 0),
    found=((120, "node-1/gpu0"), (240, "node-1/gpu0")),
)
QUIET = Case(
    story="a busy GPU at its power limit.",
    rule=ThermalThrottle(),
    trace=lambda: _reasons(0x4, 0x4),
)
