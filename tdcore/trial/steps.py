"""StepState: what a reader knows about one step of a run."""

from __future__ import annotations

from enum import Enum

__all__ = ["StepState"]


class StepState(Enum):
    """Answer of Trial.has_passed_step, with the names of the older library."""

    UNAVAILABLE = 0  # nothing was saved at this step, and nothing will be
    AVAILABLE = 1  # every worker has finished this step; all that was saved of it is there
    NOT_YET_AVAILABLE = 2  # not seen yet, or not finished by every worker; it may still come
