"""Steps, findings and causes in the form of the contract. Functions without state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcore.errors import StepUnavailable
from tdcore.modes import ModeKeys
from tdcore.text.step_text import SYSTEM_SAMPLES, step_text

if TYPE_CHECKING:
    from tdcore.rules.base import Finding
    from tdcore.rules.diagnosis import Diagnosed
    from tdcore.trial import Trial

__all__ = ["at", "cause_json", "finding_json"]


def at(trial: Trial, mode: str, mode_step: int, step: int) -> dict[str, Any]:
    """`At` of the contract: a saved step, with its epoch if the script has set one."""
    try:
        epoch = trial.epoch(step)
    except StepUnavailable:
        epoch = None
    return _at(step, mode, mode_step, step_text(step, mode, mode_step, epoch))


def finding_json(finding: Finding) -> dict[str, Any]:
    """`Finding` of the contract."""
    last = finding.step if finding.last_step is None else finding.last_step
    last_of_mode = finding.mode_step if finding.last_mode_step is None else finding.last_mode_step
    return {
        "rule": finding.rule,
        "code": finding.code,
        "at": _at(finding.step, finding.mode, finding.mode_step, finding.at),
        "last": _at(last, finding.mode, last_of_mode, finding.last_at),
        "count": finding.count,
        "worker": finding.worker,
        "attempt": finding.attempt,
        "tensor": finding.tensor,
        "why": finding.why,
        "do": finding.do,
    }


def cause_json(cause: Diagnosed) -> dict[str, Any]:
    """`Cause` of the contract."""
    mode, step = cause.since
    epoch = "" if cause.epoch is None else f" (epoch {cause.epoch})"
    return {
        "cause": cause.cause,
        "confidence": cause.confidence,
        "since": f"{mode} step {step}{epoch}",
        "seen": "; ".join(one.why for one in cause.evidence[:3]),
        "tensors": list(cause.tensors),
        "explains": list(cause.by_products),
        "change": cause.change,
        "check": cause.check,
    }


def _at(step: int, mode: str, mode_step: int, text: str) -> dict[str, Any]:
    known = mode in ModeKeys.__members__ or mode == SYSTEM_SAMPLES
    return {"mode": mode if known else "GLOBAL", "mode_step": mode_step, "step": step, "text": text}
