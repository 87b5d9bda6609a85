"""profiler_report: a report of the rules about samples and times of steps (ProfilerReport of smdebug).

    profiler_report("runs/demo", StepOutlier_stddev=4).write("rule-output")

Threads: one.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdcore.rules.base import Status, Verdict
from tdcore.rules.library import OverallFrameworkMetrics, OverallSystemUsage, ProfilerReport
from tdcore.rules.loading import as_text, rule_from_strings
from tdcore.rules.report.html import report_html

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["ReportDocument", "profiler_report"]

_SUMMARIES = (OverallSystemUsage.code, OverallFrameworkMetrics.code)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDocument:
    """The report of a run.

    Attributes:
        run: Folder or URL of the run.
        verdicts: The verdict of each rule; the rules with the most findings come first.
        created_ns: Time of the report.
    """

    run: str
    verdicts: tuple[Verdict, ...]
    created_ns: int = 0

    @property
    def has_issues(self) -> bool:
        """Whether a rule has a finding."""
        return any(verdict.status is Status.ISSUE for verdict in self.verdicts)

    @property
    def summaries(self) -> list[Verdict]:
        """The verdicts of summaries."""
        return [each for each in self.verdicts if each.code in _SUMMARIES]

    @property
    def judgements(self) -> list[Verdict]:
        """The verdicts of rules that can fire."""
        return [each for each in self.verdicts if each.code not in _SUMMARIES]

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "run": self.run,
            "status": "IssuesFound" if self.has_issues else "NoIssuesFound",
            "created_ns": self.created_ns,
            "rules": [verdict.to_json() for verdict in self.verdicts],
        }

    def to_html(self) -> str:
        """The report as one page, which loads nothing and sends nothing."""
        return report_html(self)

    def write(self, folder: str | Path) -> Path:
        """Write the report below `folder`, and return the path of its page.

        The files are in <folder>/ProfilerReport-<unix time>/profiler-output: profiler-report.html,
        profiler-report.json, and profiler-reports/<rule>.json for each rule.
        """
        output = Path(folder) / f"ProfilerReport-{self.created_ns // 10**9}" / "profiler-output"
        each = output / "profiler-reports"
        each.mkdir(parents=True, exist_ok=True)
        document = self.to_json()
        for verdict in document["rules"]:
            (each / f"{verdict['rule']}.json").write_text(_json(verdict))
        (output / "profiler-report.json").write_text(_json(document))
        page = output / "profiler-report.html"
        page.write_text(self.to_html(), encoding="utf-8")
        return page


def profiler_report(
    trial: str | Path | Trial,
    *,
    attempt: int | str | None = None,
    opt_out_telemetry: bool | str = False,
    **parameters: object,
) -> ReportDocument:
    """Judge a run by the rule ProfilerReport: all rules about machines and times of steps, and two summaries.

    Args:
        trial: Folder, URL or open Trial.
        attempt: As in run().
        opt_out_telemetry: Accepted and without effect: a report never sends anything.
        parameters: Parameters of rules, such as `StepOutlier_stddev=4`: the name of the rule, "_", and the
            name of the parameter.

    Raises:
        ConfigError: A rule or a parameter is unknown, or a value is out of range.
        RunNotFound: There is no run.
    """
    from tdcore.rules.runner import run

    given = {"opt_out_telemetry": opt_out_telemetry, **parameters}
    texts = {name: as_text(value) for name, value in given.items()}
    rule = rule_from_strings(ProfilerReport, texts)
    report = run(trial, [rule], attempt=attempt, write_findings=False)
    verdicts = [each for each in report.verdicts if not each.combined]
    return ReportDocument(
        run=str(getattr(trial, "path", trial)),
        verdicts=tuple(sorted(verdicts, key=lambda each: -each.occurrences)),
        created_ns=time.time_ns(),
    )


def _json(value: object) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
