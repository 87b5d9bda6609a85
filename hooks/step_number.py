"""StepNumber: the value of `hook.step`, which is a number and can be called.

In smdebug `hook.step` is the number of the current step; in tdcore `hook.step()` starts the next step.
Both work: `f"{hook.step}"`, `hook.step % 10`, `hook.step()`. Threads: a plain value.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["StepNumber"]


class StepNumber(int):
    """An int with the number of a step. Calling it calls `start`."""

    _start: Callable[[], None]

    def __new__(cls, number: int, start: Callable[[], None]) -> StepNumber:
        """Create the number. start: called when the number is called."""
        found = super().__new__(cls, number)
        found._start = start
        return found

    def __call__(self) -> None:
        """Start the next step of the hook."""
        self._start()

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)  # copies and pickles are plain numbers and hold no hook
