"""Findings, verdicts and diagnoses as HTML for notebooks. Pure functions, any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tdcore.text.html import Html, card, escaped, facts, joined, listing

if TYPE_CHECKING:
    from tdcore.rules.base import Finding, Verdict
    from tdcore.rules.diagnosis.diagnosis import Diagnosed, Diagnosis

__all__ = ["diagnosis_html", "finding_html", "verdict_html"]

_MOST = 10  # findings
_EVIDENCE = 3


def finding_html(finding: Finding) -> Html:
    """A finding: where, why, and what to do."""
    worker = f"{finding.worker}, attempt {finding.attempt}" if finding.worker else ""
    return card(
        joined([escaped(finding.code), escaped(finding.rule)]),
        facts(
            [
                ("tensor", escaped(finding.tensor or "the whole step")),
                ("first", escaped(finding.at)),
                ("again", escaped(finding.again)),
                ("worker", escaped(worker)),
                ("finding", escaped(finding.why, 1000)),
                ("what to do", escaped(finding.do, 1000)),
            ]
        ),
    )


def verdict_html(verdict: Verdict) -> Html:
    """A verdict, with the first findings."""
    return card(
        joined([escaped(verdict.code), escaped(verdict.rule)]),
        facts([("verdict", escaped(verdict.text, 2000))]),
        _findings(verdict.findings, verdict.finding_count),
    )


def diagnosis_html(diagnosis: Diagnosis) -> Html:
    """The causes that were found, the strongest first."""
    if diagnosis.causes:
        return card(Html("diagnosis"), *(_cause(each) for each in diagnosis.causes))
    left = ", ".join(f"{name} ({number:,})" for name, number in diagnosis.unexplained.items())
    found = f"no cause was found; findings without a cause: {left}" if left else "no cause was found"
    return card(Html("diagnosis"), escaped(found, 1000))


def _cause(cause: Diagnosed) -> Html:
    mode, step = cause.since
    return facts(
        [
            (cause.confidence, escaped(cause.cause)),
            ("since", escaped(f"{mode} step {step}")),
            ("evidence", joined([escaped(each.why, 600) for each in cause.evidence[:_EVIDENCE]], "; ")),
            ("change", escaped(cause.change, 1000)),
            ("check", escaped(cause.check, 1000)),
            ("explains", escaped(", ".join(cause.by_products))),
        ]
    )


def _findings(findings: Sequence[Finding], count: int) -> Html:
    if not findings:
        return Html("")
    rows = [
        [escaped(each.at), escaped(each.tensor or "the whole step"), escaped(each.why)]
        for each in findings[:_MOST]
    ]
    return listing(["first step", "tensor", "finding"], rows, more=count - len(rows))
