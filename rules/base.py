"""Base types of rules: Finding, Verdict and RuleProtocol.

A rule is a small frozen dataclass. Its `check` gets a `Window` (rules/window.py) of complete steps and yields
`Finding` values. It never acts, prints, writes or waits. The engine (rules/engine.py) calls it with the same
code in live and offline runs. Threads: all types here are plain values; a Window belongs to one thread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

from tdcore.config.collection_config import CollectionConfig
from tdcore.errors import ConfigError
from tdcore.rules.notebook import finding_html, verdict_html
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import (
    combined_rules_of,
    is_summary,
    judged_by,
    judges_tensors,
    step_time_columns_of,
    system_columns_of,
)
from tdcore.text.short_repr import cut, how_many
from tdcore.text.step_text import step_text

if TYPE_CHECKING:
    from tdcore.rules.window import Window

__all__ = [
    "SEPARATOR",
    "Finding",
    "Need",
    "Rule",
    "RuleProtocol",
    "SeriesKey",
    "Status",
    "Summary",
    "Verdict",
    "combined_rules_of",
    "is_summary",
    "judged_by",
    "judges_tensors",
    "names_of",
    "require",
    "step_time_columns_of",
    "system_columns_of",
]


SeriesKey: TypeAlias = "tuple[int, str, str, str, str, int]"  # see Finding.series
Summary: TypeAlias = "Mapping[str, Mapping[str, Mapping[str, float | int | str]]]"  # see Verdict.summary
SEPARATOR = re.compile(r"(?<!\\),(?!\d*\})")  # see names_of


class Status(Enum):
    """Result of one rule on one run."""

    NO_ISSUE = "no issue"
    ISSUE = "issue"
    NOT_EVALUABLE = "not evaluable"
    NOT_APPLICABLE = "does not apply"
    ERROR = "error"
    IN_PROGRESS = "in progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault that a rule found in one tensor, at one step or at several.

    Attributes:
        rule: Name of the rule's class.
        code: Code of the rule, such as "TDC101".
        step: Global step; the first, if there are several. For rules about system samples, the number of the
            sample.
        mode, mode_step: Mode, and step within the mode. "SYSTEM" and the number of the sample for rules about
            system samples.
        worker, attempt: Worker and attempt (start of the training) of the tensor.
        tensor: Name as saved; "" if the finding is about the whole step. For rules about system samples, the
            host and the device, such as "node-1/gpu0".
        numbers: Measured values and their limits, by name.
        why: One sentence with the numbers.
        do: Advice, as text.
        count: Number of steps at which it was found.
        last_step, last_mode_step: The newest of these steps; None if there is one step only.
        last_numbers: The measured values at the newest step that was reported in full; empty for one step.
        each: Whether the rule reports each step as a separate finding (its parameter `each`).
        epoch, last_epoch: Epochs of `step` and `last_step` (Hook.set_epoch); None if they are not known.
        position: Position of the tensor in the order of execution, which orders the findings of one step.
    """

    rule: str
    code: str
    step: int
    mode: str
    mode_step: int
    worker: str
    attempt: int
    tensor: str
    numbers: Mapping[str, float | int | str]
    why: str
    do: str
    count: int = 1
    last_step: int | None = None
    last_mode_step: int | None = None
    last_numbers: Mapping[str, float | int | str] = field(default_factory=dict)
    each: bool = False
    epoch: int | None = None
    last_epoch: int | None = None
    position: int = field(default=0, compare=False, repr=False)

    @property
    def at(self) -> str:
        """The step as text, with the step of the mode first: "TRAIN step 40 (epoch 2, global 55)"."""
        return step_text(self.step, self.mode, self.mode_step, self.epoch)

    @property
    def again(self) -> str:
        """The number of steps and the newest one, as text; "" if the finding has one step only."""
        return f"{self.count:,} times, last at {self.last_at}" if self.count > 1 else ""

    @property
    def last_at(self) -> str:
        """The newest step as text."""
        if self.last_step is None:
            return self.at
        return step_text(self.last_step, self.mode, self.last_mode_step, self.last_epoch)

    @property
    def series(self) -> SeriesKey:
        """The identity that joins findings of several steps to one: all parts of `key` except the step."""
        step = self.step if self.each else -1
        kind = str(self.numbers.get("kind", ""))
        return (self.attempt, self.worker, self.mode, self.tensor, kind, step)

    def joined(self, later: Finding) -> Finding:
        """Return this finding, continued by a finding at a later step of the same series.

        A second finding at the newest step, for example of a module that is called twice, is not counted.
        """
        if later.step == (self.step if self.last_step is None else self.last_step):
            return self
        continued = self.continued(later.count, later.step, later.mode_step, later.epoch)
        return replace(continued, last_numbers=later.numbers)

    def continued(self, count: int, step: int, mode_step: int, epoch: int | None = None) -> Finding:
        """Return this finding with `count` further steps; `step` is the newest, in epoch `epoch`."""
        newest = max(step, self.step if self.last_step is None else self.last_step)
        newest_of_mode = max(
            mode_step, self.mode_step if self.last_mode_step is None else self.last_mode_step
        )
        return replace(
            self,
            count=self.count + count,
            last_step=newest,
            last_mode_step=newest_of_mode,
            last_epoch=epoch if newest == step else self.last_epoch,
        )

    def __repr__(self) -> str:
        again = f" ({self.again})" if self.again else ""
        return cut(f"<{self.rule} at {self.at}, {self.tensor or 'the run'}: {self.why}{again}>")

    def _repr_html_(self) -> str:
        return finding_html(self)

    @property
    def key(self) -> tuple[str, int, str, int, str, str]:
        """Identity of a finding: rule, attempt, worker, step, tensor and kind."""
        kind = self.numbers.get("kind", "")
        return (self.rule, self.attempt, self.worker, self.step, self.tensor, str(kind))

    def to_json(self) -> dict[str, object]:
        """Plain values for JSON; numbers that JSON lacks (NaN, infinities) become text."""
        return {
            "rule": self.rule,
            "code": self.code,
            "step": self.step,
            "mode": self.mode,
            "mode_step": self.mode_step,
            "worker": self.worker,
            "attempt": self.attempt,
            "tensor": self.tensor,
            "numbers": {name: _plain(value) for name, value in self.numbers.items()},
            "why": self.why,
            "do": self.do,
            "count": self.count,
            "last_step": self.step if self.last_step is None else self.last_step,
            "last_mode_step": self.mode_step if self.last_mode_step is None else self.last_mode_step,
            "last_numbers": {name: _plain(value) for name, value in self.last_numbers.items()},
            "epoch": self.epoch,
            "last_epoch": self.epoch if self.last_step is None else self.last_epoch,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of one rule on one run so far.

    Attributes:
        rule: Name under which the rule runs: that of its class, with "-2" and so on for further instances.
        code: Code of the rule, such as "TDC101".
        status: The result.
        parameters: Parameters that differ from their defaults, as text.
        findings: The first findings, in order of steps, at most the engine's limit. Findings in one tensor at
            several steps are one finding.
        finding_count: Number of all findings.
        occurrences: Number of (finding, step) pairs.
        judged: Number of rows that the rule could judge. For rules about system samples, the number of scans.
        last_step: Newest global step that was judged. For rules about system samples, the number of the
            newest sample.
        last_mode, last_mode_step: Mode and mode step of last_step.
        missing: Reasons why needed rows could not be judged, with the number of rows.
        reason: Why the status is NOT_EVALUABLE, NOT_APPLICABLE or ERROR.
        fix: For NOT_EVALUABLE, the collections that a hook must capture for the rule, as Python code.
        captures: The same collections as values.
        asked: Whether the user or the hook named the rule; False if it runs because all rules run, or as a
            part of a named rule.
        summary: The tables of a summary: title of a table -> name of a row -> name of a column -> value.
            Empty for other rules.
        combined: Names of the rules whose verdicts this verdict combines. It counts their findings, and does
            not contain them.
    """

    rule: str
    code: str
    status: Status
    parameters: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    finding_count: int = 0
    occurrences: int = 0
    judged: int = 0
    last_step: int | None = None
    last_mode: str = ""
    last_mode_step: int | None = None
    missing: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    fix: str = ""
    captures: tuple[CollectionConfig, ...] = ()
    asked: bool = True
    summary: Summary = field(default_factory=dict)
    combined: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return cut(f"<Verdict of {self.rule}: {self.text}>")

    def _repr_html_(self) -> str:
        return verdict_html(self)

    @property
    def text(self) -> str:
        """The verdict in one line."""
        if self.status is Status.ISSUE:
            plural = "" if self.finding_count == 1 else "s"
            failed = f"; then the rule failed: {self.reason}" if self.reason else ""
            first = f", first at {self.findings[0].at}" if self.findings else ""
            times = f" ({self.occurrences:,} times)" if self.occurrences > self.finding_count else ""
            rules = f" of {', '.join(self._with_findings)}" if self.combined else ""
            return f"issue: {self.finding_count:,} finding{plural}{times}{rules}{first}{failed}"
        if self.status is Status.NOT_EVALUABLE:
            return f"not evaluable: {self.reason}" + (f" Add {self.fix}" if self.fix else "")
        if self.status is Status.NOT_APPLICABLE:
            return f"does not apply: {self.reason}"
        if self.status is Status.ERROR:
            return f"error: {self.reason}"
        if self.status is Status.IN_PROGRESS:
            if self.last_step is None:
                return "in progress: nothing judged yet"
            newest = step_text(self.last_step, self.last_mode, self.last_mode_step)
            return f"in progress: no issue up to {newest}"
        notes = [f"{count} not judged: {why}" for why, count in self.missing.items()]
        if self.combined:
            number = len(self.summary.get("rules", ()))
            notes.append(f"{how_many(number, 'rule')} judged the run")
        elif self.summary:
            notes.append(f"summary of {self.judged:,} rows")
        return f"no issue ({'; '.join(notes)})" if notes else "no issue"

    @property
    def _with_findings(self) -> list[str]:
        """The combined rules that have findings."""
        return [rule for rule, row in self.summary.get("rules", {}).items() if row["findings"]]

    def to_json(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "rule": self.rule,
            "code": self.code,
            "status": self.status.value,
            "verdict": self.text,
            "parameters": dict(self.parameters),
            "finding_count": self.finding_count,
            "occurrences": self.occurrences,
            "findings": [finding.to_json() for finding in self.findings],
            "judged": self.judged,
            "last_step": self.last_step,
            "last_mode": self.last_mode,
            "last_mode_step": self.last_mode_step,
            "missing": dict(self.missing),
            "reason": self.reason,
            "fix": self.fix,
            "asked": self.asked,
            "summary": {
                title: {row: dict(line) for row, line in table.items()}
                for title, table in self.summary.items()
            },
            "combined": list(self.combined),
        }


class RuleProtocol(Protocol):
    """A rule: finds faults in the rows of complete steps, and has no side effects.

    The engine calls `check` many times, each time with the rows of the steps that became complete since the
    last call. A rule gets every row once. It stores values that a later call needs in `window.memory`.
    `check` yields findings. It reports the number of rows that it judged with `window.judged`, and the rows
    that it could not judge with `window.missing`.

    A rule may have more class variables. `columns` names index columns that the rule reads in addition
    to rules/source.py:COLUMNS. `each_look = True` makes the engine call the rule at every poll of the run,
    also without rows (for rules about elapsed time). `each = True` makes each step a finding of its own:
    findings are not joined over steps. `system_columns` names the columns of system samples that the rule
    judges, with fields of GPUs as "gpus.utilization_percent". Such a rule gets windows with new system
    samples (`window.samples`), and no rows. `step_time_columns` names the columns of the times of steps that
    the rule judges. Such a rule gets windows with new times of steps (`window.step_times`), and no rows. A
    rule with both variables gets both kinds of windows, and the samples of a poll come first.
    `samples_optional = True`: such a rule can judge a run without system samples.

    `judged_by` declares into which parts the judgement of one run can be divided (rules/spread/): "tensor",
    each tensor of each worker alone; "worker", all tensors of each worker together; "run", no parts. The
    default is "run". `reads` names the columns that the rule reads, if it needs few of those in
    rules/source.py:COLUMNS. If all rules declare them, no other columns are read. Subclasses inherit neither.

    `is_summary = True` marks a rule that "all" leaves out. Such a rule has one of two further methods.
    `summary(memory)` returns the tables for the verdict (Verdict.summary) from the memory that `check` has
    filled. `combined_rules()` returns other rules, which the engine runs too, and which do not combine rules
    themselves. The verdict of the rule then combines their verdicts.
    """

    code: ClassVar[str]

    def needs(self) -> Need:
        """The tensors that this rule, with its parameters, needs in a run."""
        ...

    def check(self, window: Window) -> Iterator[Finding]:
        """Yield the findings in `window`, in any order."""
        ...


Rule = RuleProtocol  # the earlier name of RuleProtocol


def names_of(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Convert a list parameter to a tuple. None gives an empty tuple.

    A string is split at commas, as in smdebug. Commas that a regular expression needs do not split: the comma
    in "{2,3}", and a comma after a backslash.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        value = SEPARATOR.split(value)
    return tuple(part.strip() for part in value if part.strip())


def require(holds: bool, rule: object, parameter: str, got: object, expected: str) -> None:
    """Raise ConfigError, with rule, parameter, value and range, if a parameter is out of range.

    Args:
        holds: Whether the parameter is in range.
        rule: The rule.
        parameter: Name of the parameter.
        got: The value of the parameter.
        expected: The range, as text.
    """
    if not holds:
        raise ConfigError(f"{type(rule).__name__}.{parameter} must be {expected}, got {got!r}")


def _plain(value: float | int | str) -> float | int | str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
