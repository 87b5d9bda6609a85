"""SweepTask and SweepEntry: one task of a sweep, and its result. Both are sent between processes.

Plain values that pickle can store. A task may run in any process that has tdcore.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tdcore.errors import TdcoreError
from tdcore.rules.base import Rule
from tdcore.rules.runner import Report, run
from tdcore.text.short_repr import cut

__all__ = ["SweepEntry", "SweepTask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEntry:
    """Result of one run of a sweep: its report, or the reason why there is none."""

    place: str
    report: Report | None = None
    error: str = ""

    def __repr__(self) -> str:
        return cut(f"<SweepEntry {self.place}: {self.error or self.report!r}>")

    @property
    def exit_code(self) -> int:
        """Exit code of the report; 3 without a report."""
        return 3 if self.report is None else self.report.exit_code

    def to_json(self) -> dict[str, object]:
        """Plain values for JSON."""
        found = {} if self.report is None else self.report.to_json()
        return {**found, "run": self.place, "error": self.error, "exit_code": self.exit_code}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTask:
    """Checks one run. rules: texts are converted in the task, whose process then loads the files of rules."""

    rules: Sequence[str | Rule | type[Rule]]
    attempt: int | str | None
    ended: bool
    write_findings: bool
    max_findings: int

    def __call__(self, place: str) -> SweepEntry:
        """Check the run at `place`. An exception of the run or of a rule becomes an entry with an error."""
        return self.judged(place)

    def judged(self, place: str, **spread: Any) -> SweepEntry:
        """Check the run at `place`. spread: the arguments `workers`, `engine` and `cluster` of `run`."""
        try:
            report = run(
                place,
                self.rules,
                attempt=self.attempt,
                ended=self.ended,
                write_findings=self.write_findings,
                max_findings=self.max_findings,
                **spread,
            )
        except TdcoreError as error:
            return self.failed(place, str(error))
        except Exception as error:  # one run must not end the sweep
            return self.failed(place, f"{type(error).__name__}: {error}")
        return SweepEntry(place=place, report=report)

    def failed(self, place: str, why: str) -> SweepEntry:
        """The entry of a run that could not be judged."""
        return SweepEntry(place=place, error=why)
