"""Case: a trace, a rule and what the rule must find in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tdcore.rules.base import Rule
from tdcore.rules.trace import Trace

__all__ = ["Case"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """story:

    what the trace is, in a sentence. found: (global step, tensor) of each finding expected, in order.
    """

    story: str
    rule: Rule
    trace: Callable[[], Trace]
    found: tuple[tuple[int, str], ...] = ()
