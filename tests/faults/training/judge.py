"""Plays a case, judges it by all rules, and compares the findings with the planted fault."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from tdcore.config.hook_config import HookConfig
from tdcore.hooks.pytorch import Hook
from tdcore.rules import Finding, run
from tdcore.rules.diagnosis import DIAGNOSIS_CAPTURES, Diagnosed, diagnose
from tdcore.rules.loading import all_rules
from tests.faults.training.cases import Case, case_of, made
from tests.faults.training.faults import ACCEPTED, CAUSES, Fault
from tests.faults.training.job import learns, train

__all__ = ["Captures", "Outcome", "play", "play_by_name"]

Captures = Literal["all", "default"]

_EARLY = 10  # steps before a fault acts, at which tensors that it changes may already be captured


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Findings in one case.

    named: a rule for this cause fired at the right tensor and in time. elsewhere: a rule for this cause fired
    at another tensor or too late. others: rules that fired and do not indicate the cause. causes: the causes
    that diagnose() returned, in order. first, diagnosed: the first of these causes, or any of them, is the
    planted one, at the right tensor and in time. learned: whether the loss fell as it does in this training
    without a fault.
    """

    case: str
    cause: str
    named: bool
    elsewhere: bool
    rules: tuple[str, ...]
    others: tuple[str, ...]
    findings: int
    causes: tuple[str, ...]
    first: bool
    diagnosed: bool
    learned: bool
    first_loss: float
    last_loss: float


def play(case: Case, folder: Path, captures: Captures = "all") -> Outcome:
    """Train, judge and compare.

    folder: an empty folder for the run. captures: "all" records everything that all rules need, "default"
    records what Hook(rules="default") records.
    """
    job, where = made(case)
    torch.set_num_threads(1)
    with warnings.catch_warnings(), _hook(folder / "run", captures) as hook:
        warnings.simplefilter("ignore")  # torch itself warns about some of the faults
        losses = train(job, hook)
    report = run(folder / "run", all_rules(), write_findings=False)
    causes = diagnose(folder / "run", report=report).causes
    right = [case.fault is not None and _is_right(one, case.fault, where) for one in causes]
    findings = [finding for verdict in report.verdicts for finding in verdict.findings]
    fired = tuple(dict.fromkeys(finding.code for finding in findings))
    accepted = CAUSES[case.fault.cause] if case.fault else frozenset[str]()
    naming = [finding for finding in findings if finding.code in accepted]
    return Outcome(
        case=case.name,
        cause=case.fault.cause if case.fault else "",
        named=case.fault is not None and _in_time(naming, case.fault, where),
        elsewhere=bool(naming),
        rules=fired,
        others=tuple(code for code in fired if code not in accepted),
        findings=sum(verdict.finding_count for verdict in report.verdicts),
        causes=tuple(one.cause for one in causes),
        first=right[:1] == [True],
        diagnosed=any(right),
        learned=learns(job, losses),
        first_loss=_mean(losses[:10]),
        last_loss=_mean(losses[-10:]),
    )


def play_by_name(name: str, captures: Captures = "all") -> Outcome:
    """Play the case of this name, in another process."""
    with tempfile.TemporaryDirectory(prefix="tdcore-planted-") as folder:
        return play(case_of(name), Path(folder), captures)


def _in_time(findings: Sequence[Finding], fault: Fault, where: str) -> bool:
    return any(
        (not where or where in finding.tensor)
        and (finding.mode_step >= fault.since or finding.mode != "TRAIN")
        and finding.mode_step <= fault.since + fault.within
        for finding in findings
    )


def _is_right(found: Diagnosed, fault: Fault, where: str) -> bool:
    mode, step = found.since
    in_time = mode != "TRAIN" or fault.since - _EARLY <= step <= fault.since + fault.within
    at_place = not where or any(where in name for name in found.tensors)
    return found.cause in ACCEPTED.get(fault.name, {fault.cause}) and in_time and at_place


def _hook(folder: Path, captures: Captures) -> Hook:
    if captures == "default":
        return Hook(str(folder), rules="default")
    config = HookConfig(out_dir=str(folder), collections=DIAGNOSIS_CAPTURES)
    return Hook.from_config(config, rules=all_rules())


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)
