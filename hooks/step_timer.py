"""The stopwatch of a hook: _core.StepTimer, or a stopwatch that measures nothing.

Threads: see _core.StepTimer.
"""

from __future__ import annotations

from typing import Any

from tdcore.config.settings import measures_step_times
from tdcore.errors import ConfigError
from tdcore.format.step_times import PHASES

__all__ = [
    "BACKWARD", "CHECKPOINT", "COMPILE", "COMPUTE", "DATA", "FORWARD", "LOSS", "OPTIMIZER", "REST",
    "NullStepTimer", "phase_number", "step_timer",
]  # fmt: skip

REST, DATA, FORWARD, LOSS, BACKWARD, OPTIMIZER, COMPUTE, CHECKPOINT, COMPILE = map(
    PHASES.index,
    ("rest", "data", "forward", "loss", "backward", "optimizer", "compute", "checkpoint", "compile"),
)


_NOT_FOR_SCRIPTS = ("rest", "gc")


def phase_number(name: str) -> int:
    """The number of a phase that a script can enter. Raises ConfigError for any other name."""
    if name in PHASES and name not in _NOT_FOR_SCRIPTS:
        return PHASES.index(name)
    names = ", ".join(phase for phase in PHASES if phase not in _NOT_FOR_SCRIPTS)
    raise ConfigError(f"phase is {name!r}; it can be {names}")


class NullStepTimer:
    """Stopwatch of a hook that writes nothing. See _core.StepTimer."""

    def begin(self, step: int, mode: int, mode_step: int, phase: int, capture_ns: int) -> None:
        """Do nothing."""

    def enter(self, phase: int) -> int:
        """Return a phase without a meaning."""
        return REST

    def leave(self, interrupted: int) -> None:
        """Do nothing."""

    def begin_optimizer(self) -> None:
        """Do nothing."""

    def end_optimizer(self) -> None:
        """Do nothing."""

    def end_forward(self) -> None:
        """Do nothing."""

    def end_backward(self, interrupted: int) -> None:
        """Do nothing."""

    def gc_callback(self, phase: str, info: object) -> None:
        """Do nothing."""

    def finish(self, capture_ns: int) -> None:
        """Do nothing."""


def step_timer(ring: Any, *, writes: bool) -> Any:
    """The stopwatch of a hook. writes: whether the hook writes a run."""
    if not writes or not measures_step_times():
        return NullStepTimer()
    from tdcore._core import StepTimer  # not at the top: a disabled tdcore loads no native code

    return StepTimer(ring)
