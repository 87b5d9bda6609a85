"""Step ranges: run a rule on the rows of some steps only, like start_step and end_step of smdebug.

    load_rule("vanishing_gradient:start_step=500,end_step=2000")
    run("runs/demo", [VanishingGradient()], start_step=500)

Any rule can have a range; the rule itself is not changed. A worker whose steps are after the range counts as
ended, because the rule gets no more of its rows. Plain values; threads as those of rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.errors import ConfigError
from tdcore.rules.base import (
    Finding,
    Rule,
    Summary,
    combined_rules_of,
    is_summary,
    judged_by,
    step_time_columns_of,
    system_columns_of,
)
from tdcore.rules.columns import Columns, Mask
from tdcore.rules.measures.series import groups
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy, reads_of
from tdcore.rules.step_times import StepTimes
from tdcore.rules.window import Window

__all__ = ["RangedRule", "rule_name", "step_range_of", "with_step_range", "without_step_range"]


def with_step_range(
    rule: Rule, start_step: int = 0, end_step: int | None = None, *, each: bool = False
) -> Rule:
    """Restrict a rule to rows with start_step <= step < end_step (global steps; None: no end).

    each: whether each step is a separate finding; findings are then not joined over steps. A rule that has a
    range already gets the intersection. Samples have no steps, so a rule gets all system samples. Raises
    ConfigError for an empty range.
    """
    if isinstance(rule, RangedRule):
        each = each or rule.each
        ends = [end for end in (rule.end_step, end_step) if end is not None]
        start_step, end_step = max(rule.start_step, start_step), min(ends, default=None)
        rule = rule.rule
    if start_step < 0 or (end_step is not None and end_step <= start_step):
        raise ConfigError(
            f"{rule_name(rule)}: start_step must be at least 0 and end_step above it, "
            f"got start_step={start_step} and end_step={end_step}"
        )
    if system_columns_of(rule) and not step_time_columns_of(rule):
        start_step, end_step = 0, None
    if start_step == 0 and end_step is None and not each:
        return rule
    ranged = RangedRule(rule=rule, start_step=start_step, end_step=end_step)
    return cast(Rule, replace(ranged, each=True) if each else ranged)


def without_step_range(rule: Rule) -> Rule:
    """The rule without its step range."""
    return rule.rule if isinstance(rule, RangedRule) else rule


def step_range_of(rule: Rule) -> dict[str, str]:
    """The step range of a rule and `each` as text, by parameter name; empty if the rule has neither."""
    if not isinstance(rule, RangedRule):
        return {}
    end = {} if rule.end_step is None else {"end_step": str(rule.end_step)}
    each = {"each": "true"} if rule.each and not getattr(rule.rule, "each", False) else {}
    return {"start_step": str(rule.start_step), **end, **each}


def rule_name(rule: Rule) -> str:
    """The name of a rule: its label, or else its class name."""
    return str(getattr(rule, "label", type(rule).__name__))


@dataclass(frozen=True, slots=True, kw_only=True)
class RangedRule:
    """A rule with a step range, made by `with_step_range`. Other attributes are those of the rule."""

    rule: Rule
    start_step: int
    end_step: int | None
    each: bool = False

    def __post_init__(self) -> None:
        if getattr(self.rule, "each", False):
            object.__setattr__(self, "each", True)

    @property
    def code(self) -> str:
        """The code of the rule."""
        return self.rule.code

    @property
    def label(self) -> str:
        """The name of the rule."""
        return rule_name(self.rule)

    @property
    def columns(self) -> tuple[str, ...]:
        """Additional columns that the rule reads; see Rule."""
        return tuple(getattr(self.rule, "columns", ()))

    @property
    def system_columns(self) -> tuple[str, ...]:
        """Columns of system samples that the rule judges; see Rule."""
        return system_columns_of(self.rule)

    @property
    def step_time_columns(self) -> tuple[str, ...]:
        """Columns of times of steps that the rule judges; see Rule."""
        return step_time_columns_of(self.rule)

    @property
    def judged_by(self) -> JudgedBy:
        """The parts of a run that the rule judges alone; see Rule.

        With an end step, a worker whose steps are after the range counts as ended, so its tensors are judged
        together.
        """
        found = judged_by(self.rule)
        return "worker" if found == "tensor" and self.end_step is not None else found

    @property
    def reads(self) -> tuple[str, ...] | None:
        """The columns that the rule reads; see Rule."""
        return reads_of(self.rule)

    @property
    def samples_optional(self) -> bool:
        """Whether the rule can judge a run without system samples; see Rule."""
        return bool(getattr(self.rule, "samples_optional", False))

    @property
    def each_look(self) -> bool:
        """Whether the rule is also called without rows; see Rule."""
        return bool(getattr(self.rule, "each_look", False))

    @property
    def is_summary(self) -> bool:
        """Whether the rule is a summary; see Rule."""
        return is_summary(self.rule)

    def summary(self, memory: Mapping[Any, Any]) -> Summary:
        """The tables of the rule; see Rule."""
        summarize = getattr(self.rule, "summary", None)
        return {} if summarize is None else cast(Summary, summarize(memory.get("rule", {})))

    def combined_rules(self) -> tuple[Rule, ...]:
        """The combined rules, each with this range; see Rule."""
        rules = combined_rules_of(self.rule)
        return tuple(with_step_range(each, self.start_step, self.end_step, each=self.each) for each in rules)

    def attach(self, source: Any) -> None:
        """Pass the run to a rule in the form of smdebug."""
        attach = getattr(self.rule, "attach", None)
        if attach is not None:
            attach(source)

    def needs(self) -> Need:
        """The needs of the rule, with the range in the text."""
        need = self.rule.needs()
        if self.start_step == 0 and self.end_step is None:
            return need
        end = "" if self.end_step is None else f" and before step {self.end_step}"
        return replace(need, what=f"{need.what}, from step {self.start_step}{end}")

    def check(self, window: Window) -> Iterator[Finding]:
        """Findings of the rule in the rows of the range. The rule is not called before the first such row."""
        memory = window.memory
        own = memory.setdefault("rule", {})
        if window.samples is not None:
            yield from self.rule.check(replace(window, memory=own))
            return
        columns = window.columns if window.step_times is None else window.step_times.columns
        steps = columns.ints("step")
        inside = steps >= self.start_step
        if self.end_step is not None:
            inside &= steps < self.end_step
            passed = memory.get("passed", frozenset()) | _workers(columns, steps >= self.end_step)
            memory["passed"] = passed
        else:
            passed = frozenset()
        if not inside.any() and not memory.get("begun"):
            return
        memory["begun"] = True
        yield from self.rule.check(_within(window, inside, own, window.ended | passed))


def _workers(columns: Columns, rows: Mask) -> frozenset[tuple[int, str]]:
    """(attempt, worker) of the rows."""
    found = groups(columns, np.flatnonzero(rows), "attempt", "worker")
    return frozenset((attempt, worker) for attempt, worker, _ in found)


def _within(window: Window, inside: Mask, memory: Any, ended: frozenset[tuple[int, str]]) -> Window:
    """The window with the rows of the range, the memory of the inner rule, and the same coverage."""
    if inside.all():
        return replace(window, memory=memory, ended=ended)
    rows, payload, positions = np.flatnonzero(inside), window.payload, window.positions
    if window.step_times is not None:
        times = StepTimes(_rows_of(window.step_times.columns.table, rows))
        return replace(window, step_times=times, memory=memory, ended=ended)
    return replace(
        window,
        columns=Columns(_rows_of(window.columns.table, rows)),
        memory=memory,
        ended=ended,
        payload=None if payload is None else lambda row: payload(int(rows[row])),
        positions=rows if positions is None else positions[rows],
    )


def _rows_of(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """Rows of a table, ascending; without a copy if they are contiguous."""
    if rows.size and rows[-1] - rows[0] + 1 == rows.size:
        return table.slice(int(rows[0]), rows.size)
    return table.take(rows)
