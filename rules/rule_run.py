"""RuleRun: the state of one rule on one run: its memory, its findings, and the last checked step.

Threads: belongs to one engine.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tdcore.rules.base import Finding, Rule
from tdcore.rules.window import Coverage, Window

__all__ = ["RuleRun", "labelled", "where_raised"]

_SAVED = (
    "memory", "coverage", "findings", "count", "last_step", "last_mode", "last_mode_step", "error",
    "unwritten",
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class RuleRun:
    """A rule, and its state.

    Attributes:
        rule: The rule.
        label: Its name in verdicts; unique within an engine.
        memory: The rule's own memory, kept from window to window.
        coverage: How many rows the rule has judged, and why it could not judge others.
        findings: The findings that are kept.
        count: Number of all findings.
        last_step, last_mode, last_mode_step: The newest step that was checked; -1 and "" before the first.
        error: The exception that the rule has raised, as text; the rule is not called again then.
        unwritten: Whether findings changed since they were written.
    """

    rule: Rule
    label: str
    memory: dict[Any, Any] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)
    findings: list[Finding] = field(default_factory=list)
    count: int = 0
    last_step: int = -1
    last_mode: str = ""
    last_mode_step: int = -1
    error: str = ""
    unwritten: bool = False

    def check(self, window: Window, max_findings: int) -> list[Finding]:
        """Check a window with the memory and coverage of this object. Returns the findings that are kept.

        max_findings: how many findings are kept in all. An exception of the rule becomes `error`.
        """
        found: list[Finding] = []
        try:
            for finding in self.rule.check(window):
                self.count += 1
                if self.count <= max_findings:
                    found.append(finding if finding.rule == self.label else replace(finding, rule=self.label))
        except Exception as error:  # code of a user: must not stop the other rules
            self.error = where_raised(error)
        self.count += self.coverage.unlisted
        self.coverage.unlisted = 0
        found.sort(key=lambda finding: (finding.attempt, finding.step))
        self.findings += found
        self.unwritten = self.unwritten or bool(found)
        columns = window.columns
        if len(columns.table):
            newest = int(columns.ints("step").argmax())
            if columns.ints("step")[newest] >= self.last_step:
                self.last_step, self.last_mode_step = (
                    int(columns.ints(name)[newest]) for name in ("step", "mode_step")
                )
                self.last_mode = columns.text("mode", newest)
        return found

    def state(self) -> dict[str, Any]:
        """The state without rule and label, in plain values and dataclasses of rules. Not a copy."""
        return {name: getattr(self, name) for name in _SAVED}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a state that state() returned."""
        for name in _SAVED:
            setattr(self, name, state[name])


def labelled(rules: Iterable[Rule]) -> list[RuleRun]:
    """Rules with unique labels: a second rule of the same class gets a number."""
    runs: list[RuleRun] = []
    taken: set[str] = set()
    for rule in rules:
        name = getattr(rule, "label", type(rule).__name__)
        label, number = name, 1
        while label in taken:
            number += 1
            label = f"{name}-{number}"
        taken.add(label)
        runs.append(RuleRun(rule=rule, label=label))
    return runs


def where_raised(error: Exception) -> str:
    """An exception as text, with the file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
