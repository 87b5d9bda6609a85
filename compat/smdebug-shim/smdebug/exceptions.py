"""smdebug.exceptions: the errors of tdcore."""

from __future__ import annotations

from tdcore.smd import (
    IndexReaderException,
    InsufficientInformationForRuleInvocation,
    InvalidCollectionConfiguration,
    InvalidWorker,
    MissingCollectionFiles,
    NoMoreData,
    RuleEvaluationConditionMet,
    ShapeUnavailableForStep,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)

__all__ = [
    "IndexReaderException",
    "InsufficientInformationForRuleInvocation",
    "InvalidCollectionConfiguration",
    "InvalidWorker",
    "MissingCollectionFiles",
    "NoMoreData",
    "RuleEvaluationConditionMet",
    "ShapeUnavailableForStep",
    "StepNotYetAvailable",
    "StepUnavailable",
    "TensorUnavailable",
    "TensorUnavailableForStep",
]
