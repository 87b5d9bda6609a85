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
    """Answer of Trial.has_passed_step, with the names of the older library."""

    UNAVAILABLE = 0  # nothing was saved at this step, and nothing will be
    AVAILABLE = 1  # every worker has finished this step; all that was saved of it is there
    NOT_YET_AVAILABLE = 2  # not seen yet, or not finished by every worker; it may still come


def with_step(error: _ErrorT, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> _ErrorT:
    """The error, with the requested step and mode as its attributes."""
    error.step, error.mode = step, mode
    return error
