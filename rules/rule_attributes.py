"""Attributes that a rule may have in addition to those of RuleProtocol, with their defaults.

RuleProtocol (rules/base.py) describes them. Plain functions; any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from tdcore.rules.base import RuleProtocol

__all__ = [
    "JudgedBy",
    "combined_rules_of",
    "is_summary",
    "judged_by",
    "judges_tensors",
    "reads_of",
    "step_time_columns_of",
    "system_columns_of",
]

JudgedBy: TypeAlias = Literal["tensor", "worker", "run"]
_JUDGED_BY = ("tensor", "worker", "run")


def system_columns_of(rule: object) -> tuple[str, ...]:
    """The columns of system samples that a rule judges; () for rules that judge tensors."""
    return tuple(getattr(rule, "system_columns", ()))


def step_time_columns_of(rule: object) -> tuple[str, ...]:
    """The columns of the times of steps that a rule judges; () for rules that judge no times."""
    return tuple(getattr(rule, "step_time_columns", ()))


def judges_tensors(rule: object) -> bool:
    """Whether a rule judges the captured tensors, and not system samples or times of steps."""
    return not (system_columns_of(rule) or step_time_columns_of(rule))


def reads_of(rule: object) -> tuple[str, ...] | None:
    """The columns that the rule reads; None for a rule that may read all columns of a window.

    As in judged_by(), only the rule's own class counts.
    """
    declared = vars(type(rule)).get("reads")
    if isinstance(declared, property):
        declared = declared.fget(rule) if declared.fget else None
    return None if declared is None else tuple(declared)


def is_summary(rule: object) -> bool:
    """Whether a rule summarizes a run, or combines other rules. Such a rule runs only if it is named."""
    return bool(getattr(rule, "is_summary", False))


def combined_rules_of(rule: object) -> tuple[RuleProtocol, ...]:
    """The rules that a rule combines; () for other rules."""
    combined = getattr(rule, "combined_rules", None) if is_summary(rule) else None
    return () if combined is None else tuple(combined())


def judged_by(rule: object) -> JudgedBy:
    """What the rule judges independently; "run" for a rule whose own class declares nothing.

    A declaration of a base class does not count, because a subclass may judge differently. Raises ConfigError
    for an unknown value.
    """
    declared = vars(type(rule)).get("judged_by", "run")
    if isinstance(declared, property):
        declared = declared.fget(rule) if declared.fget else "run"
    if declared not in _JUDGED_BY:
        raise ConfigError(
            f"{type(rule).__name__}.judged_by must be one of {', '.join(_JUDGED_BY)}, got {declared!r}"
        )
    found: JudgedBy = declared
    return found
