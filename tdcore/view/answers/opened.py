"""OpenRun: a run that pages are made from.

Threads: one at a time, except `OpenRun.judge`, which reads the run with a trial of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdcore.rules.base import Finding
from tdcore.sinks import shown_place
from tdcore.trial import create_trial, no_refresh
from tdcore.view.answers.catalog import Catalog
from tdcore.view.answers.names import name_of
from tdcore.view.answers.stored_findings import stored_findings

if TYPE_CHECKING:
    from tdcore.rules.diagnosis import Diagnosis
    from tdcore.rules.runner import Report
    from tdcore.trial import Trial
    from tdcore.trial.saved_tensors import SavedSteps

__all__ = ["Judgement", "OpenRun", "frozen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdicts of all rules that apply to a run. rows: number of rows of the run at that time."""

    report: Report
    diagnosis: Diagnosis
    rows: int


class OpenRun:
    """A run that is open for reading.

    Attributes:
        id: Name of the run in requests.
        name: Name for people.
        path: Folder or URL.
        trial: The run.
        judgement: The newest verdicts; None before `judge`.
        judging: Whether `judge` runs.
        rules_error: Why there are no verdicts on the newest data; "" without an error.
        partings: Where other runs begin to differ from this run, by id, with the numbers of rows of both runs
            (answers/parting.py). The comparison reads all rows, so it is kept until there are new rows.
    """

    def __init__(self, id: str, path: str) -> None:  # noqa: A002 -- the name in the contract
        self.id = id
        self.path = path
        self.trial: Trial = create_trial(path)
        self.name = name_of(id) or self.trial.name
        self.judgement: Judgement | None = None
        self.judging = False
        self.rules_error = ""
        self.partings: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}
        self._catalog: tuple[int, Catalog] | None = None
        self._saved_steps: tuple[int, dict[str, SavedSteps]] | None = None
        self._findings: tuple[Judgement | None, list[dict[str, Any]], tuple[Finding, ...]] | None = None

    @property
    def shown_path(self) -> str:
        """The path without the options of a URL, for people."""
        return shown_place(self.path)

    @property
    def rows(self) -> int:
        """Number of rows that were read."""
        return len(self.trial.index)

    @property
    def catalog(self) -> Catalog:
        """The tensors of the run, read again if there are new rows."""
        rows = self.rows
        if self._catalog is None or self._catalog[0] != rows:
            self._catalog = (rows, Catalog.of(self.trial))
        return self._catalog[1]

    @property
    def saved_steps(self) -> dict[str, SavedSteps]:
        """Number of saved steps of each tensor, counted again if there are new rows. Reads all names."""
        rows = self.rows
        if self._saved_steps is None or self._saved_steps[0] != rows:
            self._saved_steps = (rows, self.trial.saved_steps())
        return self._saved_steps[1]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of `judgement`, and findings that are stored in the run, each once, in order of steps."""
        lines = self.trial.findings()
        if self._findings is None or self._findings[0] is not self.judgement or self._findings[1] != lines:
            judged = () if self.judgement is None else tuple(self.judgement.report.findings)
            known = {(each.rule, each.series) for each in judged}
            stored = [each for each in stored_findings(lines) if (each.rule, each.series) not in known]
            every = sorted([*judged, *stored], key=lambda each: (each.attempt, each.step))
            self._findings = (self.judgement, lines, tuple(every))
        return self._findings[2]

    def judge(self) -> Judgement:
        """Judge the run by all rules that apply, and set `judgement`. Nothing is written to the run."""
        from tdcore.rules.diagnosis import diagnose
        from tdcore.rules.runner import run

        self.judging = True
        try:
            report = run(self.path, write_findings=False)
            self.judgement = Judgement(
                report=report, diagnosis=diagnose(self.path, report=report), rows=report.rows
            )
        finally:
            self.judging = False
        return self.judgement

    def close(self) -> None:
        """Close files and connections."""
        self.trial.close()


@contextmanager
def frozen(run: OpenRun) -> Iterator[None]:
    """Within the block, the run is not read again, so that all numbers of an answer belong together."""
    if run.trial.frozen:
        yield
    else:
        with no_refresh(run.trial):
            yield
