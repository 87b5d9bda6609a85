"""report_html: the profiler report as one HTML page without scripts and without links to other servers.

Functions without state; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from html import escape
from typing import TYPE_CHECKING

from tdcore.rules.base import Finding, Verdict
from tdcore.rules.report.system_usage import STATISTICS

if TYPE_CHECKING:
    from tdcore.rules.report.profiler_report import ProfilerReport

__all__ = ["report_html"]

_MAX_FINDINGS = 20  # of one rule
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; width: 100%; }
th, td { border-bottom: 1px solid #ccc; padding: 0.25rem 0.6rem; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.bar { background: #3b6fb6; height: 0.8rem; display: inline-block; vertical-align: middle; }
.issue { color: #a02020; font-weight: 600; }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #ddd; } .issue { color: #f08080; } }
"""


def report_html(report: ProfilerReport) -> str:
    """The page of a report."""
    when = f"{datetime.fromtimestamp(report.created_ns // 10**9, timezone.utc):%Y-%m-%d %H:%M UTC}"
    summary = "issues were found" if report.has_issues else "no issue was found"
    body = [
        f"<h1>Profiler report of {escape(report.run)}</h1>",
        f"<p>Made on {when}; {summary}. This page loads nothing and sends nothing.</p>",
        "<h2>Rules</h2>",
        _table(("rule", "result", "#findings", "#judged"), map(_verdict_row, report.verdicts)),
        *(_findings(verdict) for verdict in report.verdicts if verdict.findings),
        "<h2>Time of the steps</h2>",
        *_modes(report),
        "<h2>Use of the machines</h2>",
        *_machines(report),
    ]
    title = f"Profiler report of {escape(report.run)}"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _verdict_row(verdict: Verdict) -> tuple[str, ...]:
    text = escape(verdict.text)
    shown = f'<span class="issue">{text}</span>' if verdict.findings else text
    return (
        f"{verdict.code} {escape(verdict.rule)}",
        shown,
        f"{verdict.occurrences:,}",
        f"{verdict.judged:,}",
    )


def _findings(verdict: Verdict) -> str:
    rows = [_finding_row(finding) for finding in verdict.findings[:_MAX_FINDINGS]]
    more = len(verdict.findings) - len(rows)
    rest = (
        f"<p>{more:,} more findings are in profiler-reports/{escape(verdict.rule)}.json.</p>" if more else ""
    )
    table = _table(("at", "where", "finding", "advice"), rows)
    return f"<h3>{verdict.code} {escape(verdict.rule)}</h3>{table}{rest}"


def _finding_row(finding: Finding) -> tuple[str, ...]:
    again = f" ({finding.again})" if finding.again else ""
    where = finding.tensor or finding.worker
    return tuple(escape(text) for text in (finding.at + again, where, finding.why, finding.do))


def _modes(report: ProfilerReport) -> list[str]:
    modes = report.framework_metrics.get("modes", {})
    if not modes:
        return ["<p>The run has no times of steps.</p>"]
    rows, found = [], []
    for mode, each in modes.items():
        step = (f"{each['step_ms'][name]:.1f}" for name in STATISTICS)
        rows.append(
            (escape(mode), f"{each['steps']:,}", f"{each['seconds']:.1f}", f"{each['percent']:.1f}", *step)
        )
        phases = [
            (phase, _bar(part["percent"]), f"{part['percent']:.1f}", f"{part['seconds']:.1f}")
            for phase, part in sorted(each["phases"].items(), key=lambda pair: -pair[1]["percent"])
        ]
        found.append(f"<h3>Phases of {escape(mode)}</h3>" + _table(("phase", "", "#%", "#seconds"), phases))
    head = ("mode", "#steps", "#seconds", "#%", *(f"#{name} ms" for name in STATISTICS))
    return [_table(head, rows), *found]


def _machines(report: ProfilerReport) -> list[str]:
    if not report.system_usage:
        return ["<p>The run has no system samples.</p>"]
    found = []
    for host, values in report.system_usage.items():
        rows = [
            (escape(name), *(f"{each[statistic]:,.1f}" for statistic in STATISTICS))
            for name, each in values.items()
        ]
        head = ("value", *(f"#{name}" for name in STATISTICS))
        found.append(f"<h3>{escape(host)}</h3>" + _table(head, rows))
    return found


def _bar(percent: float) -> str:
    return f'<span class="bar" style="width: {0.2 * min(percent, 100.0):.2f}rem"></span>'


def _table(head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    """A table. head: titles; those that begin with "#" are of numbers. Cells are HTML."""
    titles = list(head)
    kinds = [' class="number"' if title.startswith("#") else "" for title in titles]
    cells = [f"<th{kind}>{escape(title.lstrip('#'))}</th>" for kind, title in zip(kinds, titles, strict=True)]
    lines = [f"<tr>{''.join(cells)}</tr>"]
    for row in rows:
        cells = [f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)]
        lines += [f"<tr>{''.join(cells)}</tr>"]
    return "<table>" + "\n".join(lines) + "</table>"
