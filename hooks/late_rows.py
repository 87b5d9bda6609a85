"""LateRows: rows of steps that take their batch from an iterator, and may find none.

The stopwatch keeps the place where the row of the next step would begin. The row begins there if the step has
had a batch; otherwise the time belongs to the step before. Threads: the training thread.
"""

from __future__ import annotations

from tdcore.hooks.base import BaseHook
from tdcore.hooks.phase_signals import cancel_wait
from tdcore.hooks.step_timer import COMPUTE, DATA, REST

__all__ = ["LateRows"]


class LateRows(BaseHook):
    """The part of a hook that begins rows after their step."""

    def _expect_row(self) -> int:
        """Keep the place where a row may begin. Returns the time in tdcore so far, for _begin_row()."""
        timer = self._timer
        timer.enter(DATA)  # keeps the place, until the phase "compute" is entered
        timer.enter(REST)
        timer.leave(COMPUTE)  # continues this phase, and keeps the place
        return self._recorder.spent_ns

    def _begin_row(self, spent_ns: int) -> None:
        """Begin the row of the current step, at the place that was kept, or now."""
        now = self._clock.now
        self._timer.begin(now.step, now.mode, now.mode_step, COMPUTE, spent_ns)

    def _withdraw_step(self) -> None:
        """Take back the step that has begun, because there was no batch."""
        self._clock.withdraw()
        cancel_wait(self._timer)
