"""StepState: whether a step is available to a reader. with_step: adds step and mode to an error."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from tdcore.errors import NoMoreData, StepNotYetAvailable, StepUnavailable, TensorUnavailableForStep
from tdcore.modes import ModeKeys

__all__ = ["StepState", "with_step"]

_ErrorT = TypeVar(
    "_ErrorT", bound="NoMoreData | StepNotYetAvailable | StepUnavailable | TensorUnavailableForStep"
)


class StepState(Enum):
    """State of a step, the result of Trial.has_passed_step, with smdebug's names.

    Attributes:
        UNAVAILABLE: No tensor was or will be saved at this step.
        AVAILABLE: Every worker has finished this step, and all of its saved tensors can be read.
        NOT_YET_AVAILABLE: The step was not read yet, or not every worker has finished it.
    """

    UNAVAILABLE = 0
    AVAILABLE = 1
    NOT_YET_AVAILABLE = 2


def with_step(error: _ErrorT, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> _ErrorT:
    """The error, with the requested step and mode as its attributes."""
    error.step, error.mode = step, mode
    return error
