"""ProfileWindow: the training steps of a profile, and the parts that are recorded. A value, any thread."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TIMERS", "ProfileWindow"]

TIMERS = ("total_time", "cpu_time", "off_cpu_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileWindow:
    """A range of training steps, or a range of time that is extended to whole steps.

    Attributes:
        operators: Record the operators with torch.profiler.
        python: Record the Python functions with cProfile.
        start_step: The first step, a number of the mode TRAIN (or GLOBAL). None: the next step.
        num_steps: Number of steps. None with a duration.
        start_time: Earliest time of the first step, in seconds since 1970 (UTC).
        duration: The window ends at the first step that begins so many seconds after its start.
        timer: Clock of cProfile, one of TIMERS.
    """

    operators: bool = True
    python: bool = False
    start_step: int | None = None
    num_steps: int | None = 1
    start_time: float | None = None
    duration: float | None = None
    timer: str = TIMERS[0]
