"""diagnose(): from a run to at most three causes, each with its evidence, its place and what to change.

Each cause of the table (causes.py) is looked for. A cause that another cause explains becomes its by-product;
of two causes that exclude each other the stronger one is kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tdcore.rules.diagnosis.causes import CAUSES, Cause
from tdcore.rules.diagnosis.evidence import Evidence, confidence
from tdcore.rules.diagnosis.facts import Facts

if TYPE_CHECKING:
    from tdcore.rules.runner import Report

__all__ = ["MOST", "Diagnosed", "Diagnosis", "diagnose", "rank"]

MOST = 3  # causes that are given
_WEAKER = 0.72  # a cause explains others up to its own strength divided by this


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """One cause that was found in a run.

    cause: its name. strength: 0 to 1. evidence: what points to it, in order of steps. by_products: names of
    causes that it explains. change: what to change. check: how to see that it helped.
    """

    cause: str
    strength: float
    evidence: tuple[Evidence, ...]
    by_products: tuple[str, ...] = ()
    change: str = ""
    check: str = ""

    @property
    def confidence(self) -> str:
        """The strength in words: "certain", "likely" or "possible"."""
        return confidence(self.strength)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of tensors that show it."""
        return tuple(dict.fromkeys(name for one in self.evidence for name in one.tensors))

    @property
    def since(self) -> tuple[str, int]:
        """(mode, step of that mode) from which it shows."""
        first = min(self.evidence, key=lambda one: one.step)
        return first.mode, first.step

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        mode, step = self.since
        return {
            "cause": self.cause,
            "confidence": self.confidence,
            "strength": round(self.strength, 3),
            "mode": mode,
            "mode_step": step,
            "tensors": list(self.tensors),
            "evidence": [
                {"why": one.why, "mode": one.mode, "mode_step": one.step, "tensors": list(one.tensors)}
                for one in self.evidence
            ],
            "by_products": list(self.by_products),
            "change": self.change,
            "check": self.check,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is wrong with a run. causes: the strongest first, at most MOST; () where nothing was found.

    unexplained: rules with findings that none of the causes accounts for, with the number of findings.
    """

    causes: tuple[Diagnosed, ...] = ()
    unexplained: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "causes": [one.to_json() for one in self.causes],
            "unexplained": dict(self.unexplained),
        }


def diagnose(run: str | os.PathLike[str], *, report: Report | None = None) -> Diagnosis:
    """The causes of what is wrong with the run, at most three, the most likely first.

    Args:
        run: A folder or s3://bucket/prefix.
        report: What the rules found in it (tdcore.rules.run); None runs all rules that apply.

    Raises:
        RunNotFound: There is no run.
        RunCorrupt: It cannot be read.
    """
    from tdcore.rules.runner import run as run_rules
    from tdcore.trial import create_trial

    found = report or run_rules(os.fspath(run), write_findings=False)
    trial = create_trial(run)
    try:
        findings: dict[str, list[Any]] = {}
        for verdict in found.verdicts:
            for finding in verdict.findings:
                findings.setdefault(finding.rule, []).append(finding)
        facts = Facts.of(trial, {rule: tuple(some) for rule, some in findings.items()})
    finally:
        trial.close()
    causes = rank(facts)
    counts = {verdict.rule: verdict.finding_count for verdict in found.verdicts if verdict.finding_count}
    return Diagnosis(causes=causes, unexplained={} if causes else counts)


def rank(facts: Facts, causes: Mapping[str, Cause] = CAUSES) -> tuple[Diagnosed, ...]:
    """The causes that facts point to: without by-products and contradictions, the strongest first.

    causes: the table, by name.
    """
    found: list[tuple[Cause, tuple[Evidence, ...]]] = []
    for cause in causes.values():
        evidence = tuple(sorted(cause.sign(facts), key=lambda one: one.step))
        if evidence:
            found.append((cause, evidence))
    strength = {cause.name: max(one.strength for one in evidence) for cause, evidence in found}
    order = sorted(found, key=lambda one: -strength[one[0].name])
    kept: list[tuple[Cause, tuple[Evidence, ...]]] = []
    by_products: dict[str, list[str]] = {}
    for cause, evidence in order:
        name = cause.name
        explained_by = [
            other.name
            for other, _ in found
            if name in other.explains
            and strength[name] * _WEAKER <= strength[other.name]
            and other.name != name
            and not (other.name in cause.explains and strength[name] > strength[other.name])
        ]
        contradicted = any(name in other.excludes or other.name in cause.excludes for other, _ in kept)
        if explained_by:
            best = max(explained_by, key=lambda one: strength[one])
            by_products.setdefault(best, []).append(name)
        elif not contradicted:
            kept.append((cause, evidence))
    return tuple(
        Diagnosed(
            cause=cause.name,
            strength=strength[cause.name],
            evidence=evidence,
            by_products=tuple(by_products.get(cause.name, ())),
            change=cause.change,
            check=cause.check,
        )
        for cause, evidence in kept[:MOST]
    )
