"""Bounds: a rule that is shown the rows of some steps only. The older library's start_step and end_step.

    load_rule("vanishing_gradient:start_step=500,end_step=2000")
    run("runs/demo", [VanishingGradient()], start_step=500)

Any rule can be bounded; it knows nothing of it. A worker that has passed the last step counts as ended: it
has no more rows for the rule. Plain values; threads as those of rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.errors import ConfigError
from tdcore.rules.base import Finding, Rule
from tdcore.rules.measures.series import groups
from tdcore.rules.need import Need
from tdcore.rules.window import Columns, Mask, Window

__all__ = ["Bounded", "bounded", "bounds_of", "name_of", "unbounded"]


def bounded(rule: Rule, start_step: int = 0, end_step: int | None = None) -> Rule:
    """The rule, shown only rows with start_step <= step < end_step (global steps; None: no end).

    A rule that is bounded already keeps what both leave. Raises ConfigError for bounds that leave no step.
    """
    if isinstance(rule, Bounded):
        ends = [end for end in (rule.end_step, end_step) if end is not None]
        start_step, end_step = max(rule.start_step, start_step), min(ends, default=None)
        rule = rule.rule
    if start_step < 0 or (end_step is not None and end_step <= start_step):
        raise ConfigError(
            f"{name_of(rule)}: start_step must be at least 0 and end_step above it, "
            f"got start_step={start_step} and end_step={end_step}"
        )
    if start_step == 0 and end_step is None:
        return rule
    return cast(Rule, Bounded(rule=rule, start_step=start_step, end_step=end_step))


def unbounded(rule: Rule) -> Rule:
    """The rule without its bounds."""
    return rule.rule if isinstance(rule, Bounded) else rule


def bounds_of(rule: Rule) -> dict[str, str]:
    """The bounds of a rule as text, by the names of the parameters; empty when it has none."""
    if not isinstance(rule, Bounded):
        return {}
    end = {} if rule.end_step is None else {"end_step": str(rule.end_step)}
    return {"start_step": str(rule.start_step), **end}


def name_of(rule: Rule) -> str:
    """The name that a rule goes by."""
    return str(getattr(rule, "label", type(rule).__name__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """A rule within bounds; make it with `bounded`. It stands for the rule in everything else."""

    rule: Rule
    start_step: int
    end_step: int | None

    @property
    def code(self) -> str:
        """The rule's own."""
        return self.rule.code

    @property
    def label(self) -> str:
        """The rule's own name."""
        return name_of(self.rule)

    @property
    def columns(self) -> tuple[str, ...]:
        """What the rule reads besides; see Rule."""
        return tuple(getattr(self.rule, "columns", ()))

    @property
    def each_look(self) -> bool:
        """Whether the rule is called without rows too; see Rule."""
        return bool(getattr(self.rule, "each_look", False))

    def attach(self, source: Any) -> None:
        """Tells a rule of the older kind which run it looks at."""
        attach = getattr(self.rule, "attach", None)
        if attach is not None:
            attach(source)

    def needs(self) -> Need:
        """What the rule needs, at the steps within the bounds."""
        need = self.rule.needs()
        end = "" if self.end_step is None else f" and before step {self.end_step}"
        return replace(need, what=f"{need.what}, from step {self.start_step}{end}")

    def check(self, window: Window) -> Iterator[Finding]:
        """What the rule finds in the rows within the bounds. It is not called before the first of them."""
        memory = window.memory
        steps = window.columns.ints("step")
        inside = steps >= self.start_step
        if self.end_step is not None:
            inside &= steps < self.end_step
            passed = memory.get("passed", frozenset()) | _workers(window.columns, steps >= self.end_step)
            memory["passed"] = passed
        else:
            passed = frozenset()
        if not inside.any() and not memory.get("begun"):
            return
        memory["begun"] = True
        own = memory.setdefault("rule", {})
        yield from self.rule.check(_within(window, inside, own, window.ended | passed))


def _workers(columns: Columns, rows: Mask) -> frozenset[tuple[int, str]]:
    """(attempt, worker) of the rows."""
    found = groups(columns, np.flatnonzero(rows), "attempt", "worker")
    return frozenset((attempt, worker) for attempt, worker, _ in found)


def _within(window: Window, inside: Mask, memory: Any, ended: frozenset[tuple[int, str]]) -> Window:
    """The window with some of its rows, the rule's own memory, and the same coverage."""
    if inside.all():
        return replace(window, memory=memory, ended=ended)
    rows, payload = np.flatnonzero(inside), window.payload
    return replace(
        window,
        columns=Columns(_rows_of(window.columns.table, rows)),
        memory=memory,
        ended=ended,
        payload=None if payload is None else lambda row: payload(int(rows[row])),
    )


def _rows_of(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """Some rows of a table, ascending; without a copy where they are neighbours."""
    if rows.size and rows[-1] - rows[0] + 1 == rows.size:
        return table.slice(int(rows[0]), rows.size)
    return table.take(rows)
