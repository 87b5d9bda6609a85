"""Answer `rules`: the verdict of each rule, with its evidence, and what it lacks."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tdcore.rules import library
from tdcore.rules.explain import explain
from tdcore.view.answers.places import finding_json

if TYPE_CHECKING:
    from tdcore.rules.base import Verdict
    from tdcore.view.answers.opened import OpenRun
    from tdcore.view.answers.parameters import Parameters

__all__ = ["PARAMETERS", "answer"]

PARAMETERS = ()

_MOST_FINDINGS = 50  # of one rule


def answer(run: OpenRun, parameters: Parameters) -> dict[str, Any]:
    """`Rules` of the contract."""
    del parameters
    judgement = run.judgement
    return {
        "verdicts": [] if judgement is None else [_verdict(each) for each in judgement.report.verdicts],
        "judged": _judged(run),
    }


def _judged(run: OpenRun) -> str:
    if run.judging:
        return "running"
    if run.judgement is None:
        return "stale"
    return "now" if run.judgement.report.finished or run.trial.status == "running" else "stale"


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """`Verdict` of the contract."""
    return {
        "rule": verdict.rule,
        "code": verdict.code,
        "title": _title(verdict.code),
        "status": verdict.status.value,
        "text": verdict.text,
        "judged": verdict.judged,
        "findings": [finding_json(each) for each in verdict.findings[:_MOST_FINDINGS]],
        "finding_count": verdict.finding_count,
        "missing": [f"{why} ({count:,})" for why, count in verdict.missing.items()],
        "fix": verdict.fix,
    }


@cache
def _title(code: str) -> str:
    """The first sentence of a rule's documentation; "" for a rule of a user."""
    rule = library.RULES.get(code)
    return "" if rule is None else explain(rule).summary
