"""Cases of CheckpointStall."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.checkpoint_stall import CheckpointStall
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _steps(every: int) -> Trace:
    """Steps of 200 ms, and checkpoints of one second."""
    trace = Trace()
    for step in range(126):
        saves = step % every == 0
        trace.add_step_time(
            step, forward=80, backward=120, checkpoint=1000 if saves else 0, checkpoints=int(saves)
        )
    return trace


FIRES = Case(
    story="a training with steps of 200 ms writes a checkpoint of one second in every tenth step.",
    rule=CheckpointStall(),
    trace=lambda: _steps(10),
    found=((91, ""), (99, ""), (107, ""), (115, ""), (123, "")),
)
QUIET = Case(
    story="the training writes one checkpoint.",
    rule=CheckpointStall(),
    trace=lambda: _steps(1000),
)
