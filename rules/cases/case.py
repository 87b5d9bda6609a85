"""Case: a trace, a rule, and the findings that are expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tdcore.rules.base import Rule
from tdcore.rules.trace import Trace

__all__ = ["Case"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A trace with the expected findings of a rule.

    Attributes:
        story: Description of the trace, one sentence.
        found: (global step, tensor) of each expected finding, in order.
    """

    story: str
    rule: Rule
    trace: Callable[[], Trace]
    found: tuple[tuple[int, str], ...] = ()
