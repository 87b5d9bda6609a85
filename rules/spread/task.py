"""PartTask: judges one part of a run, and returns its findings by batch or the final state of its rules.

Plain values that pickle can store. A task may run in any process that has tdcore.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from tdcore.errors import ConfigError, TdcoreError
from tdcore.rules.base import Finding, Rule, is_summary
from tdcore.rules.columns import Columns
from tdcore.rules.engine import Engine
from tdcore.rules.rule_run import RuleRun
from tdcore.rules.run_rules import RuleChoice
from tdcore.rules.source import RowBatch
from tdcore.rules.spread.part_source import PartSource
from tdcore.rules.spread.plan import Part
from tdcore.rules.survey import Survey
from tdcore.rules.verdicts import SeenRows
from tdcore.rules.window import Unlisted, Window

__all__ = ["BatchFindings", "Newest", "PartResult", "PartTask", "RulePart"]

_MOST_WINDOWS_FULL = 20  # a part returns at most this multiple of max_findings for each rule


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFindings:
    """Findings of a rule in one batch of a part. listed: number of calls of Window.listed."""

    batch: int
    findings: list[Finding]
    unlisted: dict[tuple[int, str, str, str], Unlisted]
    selections: int


@dataclass(slots=True, kw_only=True)
class RulePart:
    """Results of one rule in one part.

    Attributes:
        batches: The batches with findings.
        judged, missing: As in Coverage.
        incomplete: Why the rule must judge the whole run in one task; "" if the part is complete.
        state: State of a rule that has judged the whole run (RuleRun.state); None for others.
    """

    batches: list[BatchFindings] = field(default_factory=list)
    judged: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    incomplete: bool = False
    state: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The newest row of a part. order: (worker, attempt, position), for rows of one step."""

    step: int
    mode: str
    mode_step: int
    order: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """Result of one part.

    Attributes:
        part: The part.
        rules: Results by the label of the rule.
        seen: Summary of its rows.
        newest: Its newest row; None without rows.
        problems: Files that could not be read, as text.
        error: Why the part could not be judged; "" if it was.
    """

    part: Part
    rules: dict[str, RulePart] = field(default_factory=dict)
    seen: SeenRows = field(default_factory=SeenRows)
    newest: Newest | None = None
    problems: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTask:
    """Judges parts of one run.

    Attributes:
        place: The run.
        rules: The rules of the report. They are loaded in the task.
        attempt, max_findings: As in `run`.
        survey: The run at the time of the report.
    """

    place: str
    rules: RuleChoice
    attempt: int | str | None
    max_findings: int
    survey: Survey

    def __call__(self, part: Part) -> PartResult:
        """Judge a part. An exception becomes a result with an error."""
        try:
            return self._judged(part)
        except TdcoreError as error:
            return self.failed(part, str(error))
        except Exception as error:  # one part must not end the others
            return self.failed(part, f"{type(error).__name__}: {error}")

    def failed(self, part: Part, why: str) -> PartResult:
        """The result of a part that could not be judged."""
        return PartResult(part=part, error=why)

    def _judged(self, part: Part) -> PartResult:
        source = PartSource(self.place, part, self.survey, attempt=self.attempt)
        with closing(source.sink):
            chosen = self.rules.chosen(source)
            engine = PartEngine(
                source,
                chosen.rules,
                write_findings=False,
                max_findings=self.max_findings,
                rules_of_run=chosen.of_run,
                part=part,
                workers=self.survey.workers,
            )
            engine.step(everything=True)
            return PartResult(
                part=part,
                rules=engine.results(),
                seen=engine.seen,
                newest=engine.newest,
                problems=tuple(engine.problems),
            )


class PartEngine(Engine):
    """Checks one part with the rules of the part, and keeps their findings by batch."""

    def __init__(
        self, source: PartSource, rules: Sequence[Rule], *, part: Part, workers: Sequence[str], **options: Any
    ) -> None:
        super().__init__(source, rules, **options)
        self._part = part
        self._workers = {worker: at for at, worker in enumerate(workers)}
        self.only(part.labels)
        lacking = sorted({*part.labels} - {run.label for run in self._runs})
        if lacking:
            raise ConfigError(f"the task has no rule {', '.join(lacking)}: its process loaded other rules")
        self.newest: Newest | None = None
        self._batch = -1
        self._found = {label: RulePart() for label in part.labels}
        self._number = dict.fromkeys(part.labels, 0)

    @property
    def seen(self) -> SeenRows:
        """Summary of the rows of the part."""
        return self._seen

    def results(self) -> dict[str, RulePart]:
        """The results of the rules, by label."""
        for run in self._runs:
            found = self._found[run.label]
            if self._part.whole:
                found.state = {**run.state(), "memory": run.memory if is_summary(run.rule) else {}}
            else:
                found.judged, found.missing = run.coverage.judged, run.coverage.missing
                found.incomplete = found.incomplete or bool(run.error)
        return self._found

    def _check_batch(self, batch: RowBatch, found: list[Finding]) -> bool:
        self._batch += 1
        if batch.table.num_rows:
            self._note_newest(batch)
        return super()._check_batch(batch, found)

    def _check(self, run: RuleRun, window: Window, found: list[Finding]) -> None:
        if self._part.whole:
            super()._check(run, window, found)
            return
        mine = self._found[run.label]
        if mine.incomplete or run.error:
            return
        run.coverage.selections = 0
        findings = run.find(window, self._max_findings)
        unlisted, run.coverage.unlisted = run.coverage.unlisted, {}
        if not findings and not unlisted:
            return
        mine.batches.append(
            BatchFindings(
                batch=self._batch,
                findings=findings,
                unlisted=unlisted,
                selections=run.coverage.selections,
            )
        )
        self._number[run.label] += len(findings) + len(unlisted)
        if self._number[run.label] > _MOST_WINDOWS_FULL * max(1, self._max_findings):
            mine.batches, mine.incomplete = [], True

    def _note_newest(self, batch: RowBatch) -> None:
        columns = Columns(batch.table)
        at = int(columns.ints("step").argmax())
        position = at if batch.positions is None else int(batch.positions[at])
        self.newest = Newest(
            step=int(columns.ints("step")[at]),
            mode=columns.text("mode", at),
            mode_step=int(columns.ints("mode_step")[at]),
            order=(
                self._workers.get(columns.text("worker", at), -1),
                int(columns.ints("attempt")[at]),
                position,
            ),
        )
