"""Cases of UnchangedTensor."""

from __future__ import annotations

from tdcore.rules.cases.case import Case
from tdcore.rules.library.unchanged_tensor import UnchangedTensor
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

LOSS = "CrossEntropyLoss_output_0"


def _losses(*values: float) -> Trace:
    trace = Trace()
    for at, value in enumerate(values):
        trace.add(100 * at, LOSS, "loss", value)
    return trace


FIRES = Case(
    story="the same batch again and again with a learning rate of zero: the loss is the same each time.",
    rule=UnchangedTensor(),
    trace=lambda: _losses(2.3026, 2.3026, 2.3026, 2.3026),
    found=((200, LOSS),),
)
QUIET = Case(
    story="a loss that falls by a ten-thousandth per saved step.",
    rule=UnchangedTensor(),
    trace=lambda: _losses(2.3026, 2.3024, 2.3022, 2.3020),
)
