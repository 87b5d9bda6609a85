"""Report: the verdicts of a set of rules on one run.

Plain values that pickle can store; any thread.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tdcore.rules.base import Finding, Status, Verdict
from tdcore.rules.finding_groups import FindingGroup, grouped
from tdcore.text.short_repr import cut, how_many

__all__ = ["EXIT_CODES", "FOLDED", "Report"]

# In order of precedence: the first of these statuses that a rule has sets the exit code.
EXIT_CODES = (
    (Status.ISSUE, 1),
    (Status.ERROR, 3),
    (Status.NOT_EVALUABLE, 3),
    (Status.NOT_APPLICABLE, 3),
    (Status.IN_PROGRESS, 4),
)
# Statuses that do not count for rules that the user did not name.
FOLDED = frozenset({Status.NOT_EVALUABLE, Status.NOT_APPLICABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The verdicts of a set of rules on one run.

    Attributes:
        run: Folder or URL of the run.
        verdicts: One verdict per rule.
        finished: Whether the run has ended and all of it was judged.
        interrupted: Whether the user interrupted the runner while it followed the run.
        rows: Number of captured tensors that were judged.
        problems: Failures of actions, and of writing findings. They do not change a verdict.
        left_out: Rules of the run's hook that could not be loaded, with the reason.
        not_recorded: Tensors that were requested from the run's hook and that it did not record. They do not
            change a verdict.
    """

    run: str
    verdicts: tuple[Verdict, ...]
    finished: bool
    interrupted: bool = False
    rows: int = 0
    problems: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    not_recorded: tuple[str, ...] = ()

    def __repr__(self) -> str:
        counts = Counter(verdict.status.value for verdict in self.verdicts)
        found = ", ".join(f"{count} {status}" for status, count in counts.items()) or "no rules"
        going = "" if self.finished else ", so far"
        findings = how_many(sum(v.finding_count for v in self.verdicts if not v.combined), "finding")
        return cut(f"<Report on {self.run}: {found}; {findings}{going}>")

    @property
    def findings(self) -> list[Finding]:
        """The stored findings of all rules, in order of attempts and steps."""
        found = [finding for verdict in self.verdicts for finding in verdict.findings]
        return sorted(found, key=lambda finding: (finding.attempt, finding.step))

    @property
    def groups(self) -> tuple[FindingGroup, ...]:
        """The findings in groups. Findings of one rule that need the same change are one group."""
        return grouped(self.findings)

    @property
    def exit_code(self) -> int:
        """Exit code of `tdcore rules run`.

        0: no rule found an issue. 1: an issue. 3: not evaluable, an error, or a rule that was left out. 4: in
        progress, no issue so far.

        A rule that runs only because all rules run is ignored if it is not evaluable or does not apply,
        unless this is true of all rules.
        """
        counted = [each for each in self.verdicts if each.asked or each.status not in FOLDED]
        statuses = {verdict.status for verdict in counted or self.verdicts}
        if self.left_out:
            statuses.add(Status.ERROR)
        return next((code for status, code in EXIT_CODES if status in statuses), 0)

    def to_json(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "run": self.run,
            "finished": self.finished,
            "interrupted": self.interrupted,
            "rows": self.rows,
            "exit_code": self.exit_code,
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "groups": [group.to_json() for group in self.groups],
            "problems": list(self.problems),
            "left_out": list(self.left_out),
            "not_recorded": list(self.not_recorded),
        }
