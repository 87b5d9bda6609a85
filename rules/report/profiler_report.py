"""profiler_report: a report of the rules about samples and times of steps (ProfilerReport of smdebug).

    profiler_report("runs/demo", StepOutlier_stddev=4).write("rule-output")

Threads: one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdcore.rules.base import Status, Verdict
from tdcore.rules.loading import as_text, profiling_rules
from tdcore.rules.report.framework_metrics import overall_framework_metrics
from tdcore.rules.report.html import report_html
from tdcore.rules.report.system_usage import overall_system_usage

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["ProfilerReport", "profiler_report"]

_SUMMARIES = ("OverallSystemUsage", "OverallFrameworkMetrics")  # rules of smdebug without parameters here


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerReport:
    """The report of a run.

    Attributes:
        run: Folder or URL of the run.
        verdicts: The verdict of each rule; the rules with the most findings come first.
        system_usage: See overall_system_usage().
        framework_metrics: See overall_framework_metrics().
        created_ns: Time of the report.
    """

    run: str
    verdicts: tuple[Verdict, ...]
    system_usage: Mapping[str, Any] = field(default_factory=dict)
    framework_metrics: Mapping[str, Any] = field(default_factory=dict)
    created_ns: int = 0

    @property
    def has_issues(self) -> bool:
        """Whether a rule has a finding."""
        return any(verdict.status is Status.ISSUE for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "run": self.run,
            "status": "IssuesFound" if self.has_issues else "NoIssuesFound",
            "created_ns": self.created_ns,
            "rules": [verdict.to_json() for verdict in self.verdicts],
            "OverallSystemUsage": self.system_usage,
            "OverallFrameworkMetrics": self.framework_metrics,
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
        parts = {verdict["rule"]: verdict for verdict in document["rules"]}
        parts |= {name: document[name] for name in _SUMMARIES}
        for name, part in parts.items():
            (each / f"{name}.json").write_text(_json(part))
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
) -> ProfilerReport:
    """Judge a run by all rules about samples and times of steps, and summarize its time and machines.

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
    from tdcore.trial import create_trial

    given = {"opt_out_telemetry": opt_out_telemetry, **parameters}
    rules = profiling_rules({name: as_text(value) for name, value in given.items()})
    report = run(trial, rules, attempt=attempt, write_findings=False)
    opened = create_trial(trial) if isinstance(trial, (str, Path)) else trial
    number = attempt if isinstance(attempt, int) else None
    if attempt is None:
        number = max(opened.attempts, default=None)
    verdicts = sorted(report.verdicts, key=lambda each: -each.occurrences)
    return ProfilerReport(
        run=str(getattr(trial, "path", trial)),
        verdicts=tuple(verdicts),
        system_usage=overall_system_usage(opened.system(attempt=number)),
        framework_metrics=overall_framework_metrics(opened.steps_time(attempt=number)),
        created_ns=time.time_ns(),
    )


def _json(value: object) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
