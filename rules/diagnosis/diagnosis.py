"""diagnose(): finds at most three causes of the faults of a run, each with evidence, place and advice.

Each cause of the table (causes.py) is checked. A cause that another cause explains becomes a by-product of
the other cause. If two causes exclude each other, the stronger cause is kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tdcore.errors import StepUnavailable
from tdcore.modes import ModeKeys
from tdcore.rules.diagnosis.causes import CAUSES, Cause
from tdcore.rules.diagnosis.evidence import Evidence, confidence
from tdcore.rules.diagnosis.facts import Facts
from tdcore.rules.notebook import diagnosis_html

if TYPE_CHECKING:
    from tdcore.rules.runner import Report
    from tdcore.trial import Trial

__all__ = ["MOST", "Diagnosed", "Diagnosis", "diagnose", "rank"]

MOST = 3  # maximum number of reported causes
_WEAKER = 0.72  # a cause explains only causes of at most its own strength / _WEAKER


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """One cause that was found in a run.

    Attributes:
        cause: Name of the cause.
        strength: From 0 to 1.
        evidence: Evidence for the cause, in order of steps.
        by_products: Names of causes that this cause explains.
        change: Advice for a change.
        check: How to check that the change helped.
        epoch: Epoch of the first evidence (Hook.set_epoch); None if it is not known.
    """

    cause: str
    strength: float
    evidence: tuple[Evidence, ...]
    by_products: tuple[str, ...] = ()
    change: str = ""
    check: str = ""
    epoch: int | None = None

    @property
    def confidence(self) -> str:
        """The strength in words: "certain", "likely" or "possible"."""
        return confidence(self.strength)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of tensors with evidence for the cause."""
        return tuple(dict.fromkeys(name for one in self.evidence for name in one.tensors))

    @property
    def since(self) -> tuple[str, int]:
        """(mode, step of that mode) of the first evidence."""
        strongest = max(self.evidence, key=lambda one: one.strength).mode
        first = min((one for one in self.evidence if one.mode == strongest), key=lambda one: one.step)
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
            "epoch": self.epoch,
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
    """Causes of the faults of a run.

    Attributes:
        causes: At most MOST causes, the strongest first; () if no cause was found.
        unexplained: If no cause was found, the rules with findings, and their numbers of findings.
    """

    causes: tuple[Diagnosed, ...] = ()
    unexplained: Mapping[str, int] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return diagnosis_html(self)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "causes": [one.to_json() for one in self.causes],
            "unexplained": dict(self.unexplained),
        }


def diagnose(run: str | os.PathLike[str], *, report: Report | None = None) -> Diagnosis:
    """Find the causes of the faults of a run, at most three, the most likely first.

    Args:
        run: A folder or s3://bucket/prefix.
        report: The report of tdcore.rules.run on this run; None: run all rules that apply.

    Returns:
        The causes, with evidence and advice.

    Raises:
        RunNotFound: There is no run.
        RunCorrupt: The run cannot be read.
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
        causes = tuple(replace(cause, epoch=_epoch(trial, *cause.since)) for cause in rank(facts))
    finally:
        trial.close()
    counts = {
        verdict.rule: verdict.finding_count
        for verdict in found.verdicts
        if verdict.finding_count and not verdict.combined
    }
    return Diagnosis(causes=causes, unexplained={} if causes else counts)


def _epoch(trial: Trial, mode: str, mode_step: int) -> int | None:
    """The epoch of a step of a mode; None if it is not known."""
    try:
        return trial.epoch(trial.global_step(ModeKeys[mode], mode_step))
    except (KeyError, StepUnavailable):
        return None


def rank(facts: Facts, causes: Mapping[str, Cause] = CAUSES) -> tuple[Diagnosed, ...]:
    """The causes with evidence in the facts, without by-products and contradictions, the strongest first.

    causes: the table, by name.
    """
    found: list[tuple[Cause, tuple[Evidence, ...]]] = []
    for cause in causes.values():
        evidence = tuple(sorted(cause.sign(facts), key=lambda one: one.step))
        if evidence:
            found.append((cause, evidence))
    strength = {cause.name: max(one.strength for one in evidence) for cause, evidence in found}
    kept, by_products = _roots([cause for cause, _ in found], strength)
    evidence_of = {cause.name: evidence for cause, evidence in found}
    return tuple(
        Diagnosed(
            cause=cause.name,
            strength=strength[cause.name],
            evidence=evidence_of[cause.name],
            by_products=tuple(by_products[cause.name]),
            change=cause.change,
            check=cause.check,
        )
        for cause in kept[:MOST]
    )


def _roots(found: list[Cause], strength: Mapping[str, float]) -> tuple[list[Cause], dict[str, list[str]]]:
    """(causes that no other cause explains, the strongest first; the by-products of each cause).

    A cause is selected if no remaining cause explains it. If remaining causes explain each other in a circle,
    the strongest cause is selected. The causes that the selected cause explains are then removed. Of two
    contradicting causes, the weaker cause is removed.
    """
    left = sorted(found, key=lambda cause: -strength[cause.name])  # stable: in the order of the table
    kept: list[Cause] = []
    by_products: dict[str, list[str]] = {}
    while left:
        cause = next((one for one in left if not any(_explains(o, one, strength) for o in left)), left[0])
        left.remove(cause)
        if any(_contradict(cause, other) for other in kept):
            continue
        if any(_contradict(cause, o) and strength[o.name] > strength[cause.name] for o in left):
            continue
        explained = [one for one in left if _explains(cause, one, strength)]
        by_products[cause.name] = [one.name for one in explained]
        left = [one for one in left if one not in explained]
        kept.append(cause)
    return sorted(kept, key=lambda one: -strength[one.name]), by_products


def _contradict(one: Cause, other: Cause) -> bool:
    return one.name in other.excludes or other.name in one.excludes


def _explains(cause: Cause, other: Cause, strength: Mapping[str, float]) -> bool:
    if cause is other or other.name not in cause.explains or _contradict(cause, other):
        return False
    if cause.name in other.explains and strength[other.name] > strength[cause.name]:
        return False  # each explains the other: only the stronger cause explains
    return strength[other.name] * _WEAKER <= strength[cause.name]
