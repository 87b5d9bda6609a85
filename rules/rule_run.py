"""RuleRun: the state of one rule on one run: its memory, its findings, and the last checked step.

Threads: belongs to one engine.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tdcore.rules.base import Finding, Rule, SeriesKey, combined_rules_of, step_time_columns_of
from tdcore.rules.window import Coverage, Window
from tdcore.rules.window_findings import WindowFindings
from tdcore.text.step_text import SYSTEM_SAMPLES

__all__ = ["EpochOf", "RuleRun", "labelled", "where_raised"]

EpochOf: TypeAlias = "Callable[[int, str, int], int | None]"  # attempt, worker, step

_SAVED = (
    "memory", "coverage", "findings", "beyond", "occurrences", "last_step", "last_mode",
    "last_mode_step", "error", "unwritten", "written",
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class RuleRun:
    """A rule, and its state.

    Attributes:
        rule: The rule.
        label: Name of the rule in verdicts; unique within an engine.
        combined: Labels of the rules that the rule combines.
        memory: The rule's own memory, kept from window to window.
        coverage: Number of rows that the rule has judged, and the reasons why other rows could not be judged.
        findings: The findings that are kept, by series (Finding.series), in the order in which they began: up
            to the limit, and at least one of each attempt.
        beyond: The tensors of findings that are not kept, because there are too many, as series without kind.
            Empty if each step is a finding of its own, since their number grows with the training.
        occurrences: Number of (finding, step) pairs.
        last_step, last_mode, last_mode_step: The newest step that was checked; -1 and "" before the first.
        error: The exception that the rule has raised, as text; the rule is not called again then.
        unwritten: Whether findings changed since they were written.
        written: The number of occurrences when they were written; -1 if a finding was not written yet.
    """

    rule: Rule
    label: str
    combined: tuple[str, ...] = ()
    memory: dict[Any, Any] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)
    findings: dict[SeriesKey, Finding] = field(default_factory=dict)
    beyond: set[SeriesKey] = field(default_factory=set)
    occurrences: int = 0
    last_step: int = -1
    last_mode: str = ""
    last_mode_step: int = -1
    error: str = ""
    unwritten: bool = False
    written: int = -1

    @property
    def count(self) -> int:
        """Number of findings, also of those that are not kept."""
        return self.occurrences if self.each else len(self.findings) + len(self.beyond)

    @property
    def each(self) -> bool:
        """Whether each step is a finding of its own."""
        return bool(getattr(self.rule, "each", False))

    @property
    def must_write(self) -> bool:
        """Whether to write findings now: after a new finding, or when the number of occurrences has doubled.

        A finding that continues for the whole training is therefore written only a few times, and not at each
        step.
        """
        return self.unwritten and (self.written < 0 or self.occurrences >= 2 * self.written)

    def check(self, window: Window, max_findings: int) -> tuple[list[Finding], list[Finding]]:
        """Check a window with the memory and coverage of this object.

        max_findings: maximum number of findings that are kept. An exception of the rule is stored in `error`.

        Returns:
            The findings of the window, one for each step, at most max_findings, in order of steps; and the
            kept findings that are new or continued.
        """
        found = self.find(window, max_findings)
        changed = self.add(found, window.epoch, max_findings)
        self._note_newest(window)
        return found, changed

    def find(self, window: Window, max_findings: int) -> list[Finding]:
        """The findings of a window. Findings beyond max_findings are only counted in `coverage`."""
        found = WindowFindings(max_findings)
        try:
            for finding in self.rule.check(window):
                found.add(self._own(finding, window))
        except Exception as error:  # a rule may be user code: its exceptions must not stop the other rules
            self.error = where_raised(error)
        kept = found.kept()
        for tensor, (number, step, mode_step) in found.left_out.items():
            self.coverage.skip(tensor, step, mode_step, number=number)
        return kept

    def add(self, found: Iterable[Finding], epoch: EpochOf, max_findings: int) -> list[Finding]:
        """Add the findings of a window, and those that are only counted. Return the new and continued ones.

        epoch: returns the epoch of a step of an attempt and worker; None if it is not known.
        """
        changed: dict[SeriesKey, None] = {}
        for finding in found:
            self._add(finding, max_findings, changed)
        self._add_unlisted(changed, epoch)
        return [self.findings[series] for series in changed]

    def _own(self, finding: Finding, window: Window) -> Finding:
        """The finding with the label of this run, its epoch, and `each`."""
        is_sample = finding.mode == SYSTEM_SAMPLES  # its number is not a step
        epoch = None if is_sample else window.epoch(finding.attempt, finding.worker, finding.step)
        return replace(finding, rule=self.label, each=self.each, epoch=epoch)

    def _add(self, finding: Finding, max_findings: int, changed: dict[SeriesKey, None]) -> None:
        series = finding.series
        before = self.findings.get(series)
        if before is not None:
            finding = before.joined(finding)
            if finding is before:
                return
        self.occurrences += 1
        if before is None:
            if len(self.findings) >= max_findings and self._has_attempt(finding.attempt):
                self._add_beyond(series)
                return
            self.written = -1
        self.findings[series] = finding
        self.unwritten = True
        changed[series] = None

    def _has_attempt(self, attempt: int) -> bool:
        """Whether a finding of this attempt is kept. Each attempt has one, so that actions get it."""
        return any(series[0] == attempt for series in reversed(self.findings))

    def _add_beyond(self, series: SeriesKey) -> None:
        """Count a finding of a tensor, without its kind, which unlisted findings do not have."""
        if not self.each:
            self.beyond.add((*series[:4], "", -1))

    def _add_unlisted(self, changed: dict[SeriesKey, None], epoch_of: EpochOf) -> None:
        """Add the findings that were only counted to the newest finding of the same tensor."""
        unlisted, self.coverage.unlisted = self.coverage.unlisted, {}
        if not unlisted:
            return
        series_of = {series[:4]: series for series in self.findings}
        for tensor, (count, step, mode_step) in unlisted.items():
            self.occurrences += count
            series = series_of.get(tensor)
            if series is None or self.each:
                self._add_beyond((*tensor, "", -1))
                continue
            epoch = epoch_of(tensor[0], tensor[1], step)
            self.findings[series] = self.findings[series].continued(count, step, mode_step, epoch)
            self.unwritten = True
            changed[series] = None

    def _note_newest(self, window: Window) -> None:
        columns = window.columns if window.step_times is None else window.step_times.columns
        if window.samples is not None:
            if len(window.samples) and not step_time_columns_of(self.rule):
                newest = int(window.samples.columns.ints("sample").max())
                self.last_step = self.last_mode_step = max(newest, self.last_step)
                self.last_mode = SYSTEM_SAMPLES
        elif len(columns.table):
            newest = int(columns.ints("step").argmax())
            if columns.ints("step")[newest] >= self.last_step:
                self.last_step, self.last_mode_step = (
                    int(columns.ints(name)[newest]) for name in ("step", "mode_step")
                )
                self.last_mode = columns.text("mode", newest)

    def state(self) -> dict[str, Any]:
        """The live state (not a copy) without rule and label, in plain values and dataclasses of rules."""
        return {name: getattr(self, name) for name in _SAVED}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state that state() returned."""
        for name in _SAVED:
            setattr(self, name, state[name])


def labelled(rules: Iterable[Rule]) -> list[RuleRun]:
    """Rules with unique labels: a second rule of the same class gets a number.

    Rules that a rule combines come last. If an equal rule was given, the rule combines that one.
    """
    runs: dict[str, RuleRun] = {}

    def add(rule: Rule) -> str:
        name = getattr(rule, "label", type(rule).__name__)
        label, number = name, 1
        while label in runs:
            number += 1
            label = f"{name}-{number}"
        runs[label] = RuleRun(rule=rule, label=label)
        return label

    for rule in rules:
        add(rule)
    for run in list(runs.values()):
        known = {label: each.rule for label, each in runs.items()}
        parts = combined_rules_of(run.rule)
        equal = (next((label for label, rule in known.items() if rule == part), None) for part in parts)
        run.combined = tuple(label or add(part) for part, label in zip(parts, equal, strict=True))
    return list(runs.values())


def where_raised(error: Exception) -> str:
    """An exception as text, with the file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
