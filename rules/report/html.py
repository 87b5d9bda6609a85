"""report_html: the profiler report as one HTML page without scripts and without links to other servers.

Functions without state; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from html import escape
from typing import TYPE_CHECKING

from tdcore.rules.base import Finding, Verdict
from tdcore.text.numbers import number_text

if TYPE_CHECKING:
    from tdcore.rules.report.profiler_report import ReportDocument

__all__ = ["report_html"]

_MAX_FINDINGS = 20  # of one rule
_SHARE = "%"  # column of a summary with shares
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; width: 100%; }
th, td { border-bottom: 1px solid #ccc; padding: 0.25rem 0.6rem; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.bar { background: #3b6fb6; height: 0.8rem; display: inline-block; vertical-align: middle; }
.issue { color: #a02020; font-weight: 600; }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #ddd; } .issue { color: #f08080; } }
"""


def report_html(report: ReportDocument) -> str:
    """The page of a report."""
    when = f"{datetime.fromtimestamp(report.created_ns // 10**9, timezone.utc):%Y-%m-%d %H:%M UTC}"
    summary = "issues were found" if report.has_issues else "no issue was found"
    body = [
        f"<h1>Profiler report of {escape(report.run)}</h1>",
        f"<p>Made on {when}; {summary}. This page loads nothing and sends nothing.</p>",
        "<h2>Rules</h2>",
        _table(("rule", "result", "#findings", "#judged"), map(_verdict_row, report.judgements)),
        *(_findings(verdict) for verdict in report.verdicts if verdict.findings),
        *(line for verdict in report.summaries for line in _summary(verdict)),
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


def _summary(verdict: Verdict) -> list[str]:
    """The tables of a summary, with a bar for each share."""
    found = [f"<h2>{verdict.code} {escape(verdict.rule)}</h2>"]
    if not verdict.summary:
        found.append(f"<p>{escape(verdict.text)}</p>")
    for title, rows in verdict.summary.items():
        names = list(dict.fromkeys(name for row in rows.values() for name in row))
        head = ["", *(f"#{name}" for name in names), *([""] if _SHARE in names else [])]
        lines = [
            (escape(row), *(number_text(line.get(name)) for name in names), *_bars(line.get(_SHARE)))
            for row, line in rows.items()
        ]
        found.append(f"<h3>{escape(title)}</h3>" + _table(head, lines))
    return found


def _bars(percent: float | int | str | None) -> tuple[str, ...]:
    return (_bar(percent),) if isinstance(percent, float) else ()


def _bar(percent: float) -> str:
    return f'<span class="bar" style="width: {0.2 * min(percent, 100.0):.2f}rem"></span>'


def _table(head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    """A table. head: titles; "#" at the start marks a column of numbers. Cells are HTML."""
    titles = list(head)
    kinds = [' class="number"' if title.startswith("#") else "" for title in titles]
    cells = [f"<th{kind}>{escape(title.lstrip('#'))}</th>" for kind, title in zip(kinds, titles, strict=True)]
    lines = [f"<tr>{''.join(cells)}</tr>"]
    for row in rows:
        cells = [f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)]
        lines += [f"<tr>{''.join(cells)}</tr>"]
    return "<table>" + "\n".join(lines) + "</table>"
