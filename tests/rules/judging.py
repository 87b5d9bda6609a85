"""What the tests of rules share."""

from __future__ import annotations

from tdcore.rules.base import Finding, Rule, Verdict
from tdcore.rules.engine import Engine
from tdcore.rules.trace import Trace

LOSS = "CrossEntropyLoss_output_0"


def judge(rule: Rule, trace: Trace) -> tuple[list[Finding], Verdict]:
    """All findings of a rule over a finished trace, and its verdict."""
    engine = Engine(trace.source(), [rule])
    found = engine.step()
    (verdict,) = engine.verdicts(finished=True)
    return found, verdict


def losses(values: list[float], *, every: int = 1, mode: str = "TRAIN") -> Trace:
    """A scalar loss saved at steps 0, every, 2 * every, ..."""
    trace = Trace()
    for at, value in enumerate(values):
        trace.add(at * every, LOSS, "loss", value, mode=mode)
    return trace
