"""RoundTimer: the stopwatch of boosting. A round begins with its first update of a model.

The library calls the hook after a round, so the row of a round begins before the hook counts its step.
Threads: see _core.StepTimer.
"""

from __future__ import annotations

import weakref
from typing import Any

from tdcore.hooks.step_timer import COMPUTE, REST
from tdcore.modes import ModeKeys

__all__ = ["RoundTimer"]

_TRAIN = ModeKeys.TRAIN.value


class RoundTimer:
    """Stopwatch whose phase "compute" begins the row of the next step, unless this row has begun.

    Args:
        timer: The native stopwatch.
        hook: The hook; referred to weakly.
    """

    def __init__(self, timer: Any, hook: Any) -> None:
        self._timer = timer
        self._hook = weakref.ref(hook)
        self._has_begun = False  # the row of a round that the hook has not counted
        self.leave = timer.leave
        self.gc_callback = timer.gc_callback

    def enter(self, phase: int) -> int:
        """Begin a phase. Returns the phase before."""
        if phase != COMPUTE or self._has_begun:
            before: int = self._timer.enter(phase)
            return before
        hook = self._hook()
        if hook is not None and not hook._off:
            self._has_begun = True
            mode, clock = hook._mode or _TRAIN, hook._clock
            step, mode_step = clock.now.step + 1, clock.mode_steps[mode] + 1
            self._timer.begin(step, mode, mode_step, COMPUTE, hook._recorder.spent_ns)
        return REST

    def begin(self, step: int, mode: int, mode_step: int, phase: int, capture_ns: int) -> None:
        """Count the round. Its row begins now if no update was reported."""
        if not self._has_begun:
            self._timer.begin(step, mode, mode_step, REST, capture_ns)
        self._has_begun = False

    def finish(self, capture_ns: int) -> None:
        """End the last row. The row of a round that did not end is left out."""
        if not self._has_begun:
            self._timer.finish(capture_ns)
