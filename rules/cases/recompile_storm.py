"""Cases of RecompileStorm."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.recompile_storm import RecompileStorm
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _steps(every: int) -> Trace:
    """Steps of 200 ms, and compilations of 100 ms."""
    trace = Trace()
    for step in range(126):
        compiles = step % every == 0
        trace.add_step_time(
            step, forward=80, backward=120, compile=100 if compiles else 0, compiles=int(compiles)
        )
    return trace


FIRES = Case(
    story="a model is compiled in every fifth step.",
    rule=RecompileStorm(),
    trace=lambda: _steps(5),
    found=((105, ""), (113, ""), (121, "")),
)
QUIET = Case(
    story="a model is compiled in the first step only.",
    rule=RecompileStorm(),
    trace=lambda: _steps(1000),
)
