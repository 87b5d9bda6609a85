"""OpenRun: a run that pages are made from. RunSet: the runs at a place, opened when they are first used.

Threads: one at a time, except `OpenRun.judge`, which reads the run with a trial of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tdcore.errors import RunNotFound, TdcoreError
from tdcore.rules.base import Finding
from tdcore.sinks import is_remote, local_path, place_text, shown_place
from tdcore.text.did_you_mean import did_you_mean
from tdcore.text.short_repr import cut
from tdcore.trial import create_trial, no_refresh
from tdcore.trial.run_search import runs_below
from tdcore.view.answers.catalog import Catalog
from tdcore.view.answers.model_order import natural_key
from tdcore.view.answers.stored_findings import stored_findings

if TYPE_CHECKING:
    from tdcore.rules.diagnosis import Diagnosis
    from tdcore.rules.runner import Report
    from tdcore.trial import Trial

__all__ = ["Judgement", "OpenRun", "RunSet", "frozen"]


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
    """

    def __init__(self, id: str, path: str) -> None:  # noqa: A002 -- the name in the contract
        self.id = id
        self.path = path
        self.trial: Trial = create_trial(path)
        self.name = id or self.trial.name
        self.judgement: Judgement | None = None
        self.judging = False
        self._catalog: tuple[int, Catalog] | None = None
        self._findings: tuple[object, tuple[Finding, ...]] | None = None

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
    def findings(self) -> tuple[Finding, ...]:
        """Findings of `judge`, and findings that are stored in the run, each once, in order of steps."""
        judged = () if self.judgement is None else tuple(self.judgement.report.findings)
        stored = self.trial.findings()
        key = (id(self.judgement), len(stored), self.rows)
        if self._findings is None or self._findings[0] != key:
            known = {(each.rule, each.series) for each in judged}
            more = [each for each in stored_findings(stored) if (each.rule, each.series) not in known]
            every = sorted([*judged, *more], key=lambda each: (each.attempt, each.step))
            self._findings = (key, tuple(every))
        return self._findings[1]

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


class RunSet:
    """One run, or all runs below a folder or prefix.

    place: a run, or a folder or prefix with runs below it.

    Attributes:
        folder: The place, for people.

    Raises:
        RunNotFound: There is no run at this place.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self._place = place_text(place)
        self.folder = shown_place(self._place)
        self._paths: dict[str, str] = {}
        self._open: dict[str, OpenRun] = {}
        self.search()
        if not self._paths:
            create_trial(self._place).close()  # raises RunNotFound with the reason

    def search(self) -> list[str]:
        """Search for runs, and return their ids, in the order of numbers in their names."""
        below = runs_below(self._place)
        if below:
            found = {self._relative(path): path for path in below}
        elif self._paths:
            return list(self._paths)
        else:
            create_trial(self._place).close()
            found = {PurePosixPath(shown_place(self._place).rstrip("/") or ".").name or "run": self._place}
        self._paths = {name: found[name] for name in sorted(found, key=natural_key)}
        return list(self._paths)

    @property
    def ids(self) -> list[str]:
        """Ids of the runs that were found."""
        return list(self._paths)

    def run(self, id: str = "") -> OpenRun:  # noqa: A002 -- the name in the contract
        """The run with this id; "": the first run.

        Raises:
            RunNotFound: There is no such run.
            RunError, SinkError: The run cannot be read.
        """
        ids = self.ids
        name = id or ids[0]
        if name not in self._paths:
            there = ", ".join(ids[:8]) + (f" and {len(ids) - 8:,} more" if len(ids) > 8 else "")
            raise RunNotFound(
                f"there is no run {cut(id)!r} in {self.folder}; it has {there}{did_you_mean(id, ids)}"
            )
        if name not in self._open:
            self._open[name] = OpenRun(name, self._paths[name])
        return self._open[name]

    def readable(self) -> Iterator[tuple[str, OpenRun | TdcoreError]]:
        """Each id with its run, or with the error why it cannot be read."""
        for name in self.ids:
            try:
                yield name, self.run(name)
            except TdcoreError as error:  # noqa: PERF203 -- the other runs are listed
                yield name, error

    def close(self) -> None:
        """Close all runs."""
        for each in self._open.values():
            each.close()
        self._open.clear()

    def _relative(self, path: str) -> str:
        if is_remote(self._place):
            return shown_place(path)[len(shown_place(self._place).rstrip("/")) + 1 :]
        return Path(path).relative_to(local_path(self._place)).as_posix()


@contextmanager
def frozen(run: OpenRun) -> Iterator[None]:
    """Within the block, the run is not read again, so that all numbers of an answer belong together."""
    if run.trial.frozen:
        yield
    else:
        with no_refresh(run.trial):
            yield
