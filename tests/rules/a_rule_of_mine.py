"""A user's module of rules, for tests: a rule with its own class of state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.rules import Finding, Need, Window


@dataclass(slots=True)
class Seen:
    """State of the rule."""

    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryNth:
    """Fires at every nth row, counted over all calls; so each row must come exactly once."""

    code: ClassVar[str] = "mine"
    nth: int = 10

    def needs(self) -> Need:
        return Need(what="rows")

    def check(self, window: Window) -> Iterator[Finding]:
        seen: Seen = window.memory.setdefault("seen", Seen())
        window.judged(len(window))
        for row in np.argsort(window.columns.ints("step"), kind="stable").tolist():
            seen.count += 1
            if seen.count % self.nth == 0:
                yield window.finding(self, row, numbers={"count": seen.count}, why="nth", do="nothing")
