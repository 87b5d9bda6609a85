"""State of a hook's step counters for checkpoints, so that a resumed training continues the step numbers.

    torch.save({"model": model.state_dict(), "hook": hook.state_dict()}, path)  # next to the training's own
    hook.load_state_dict(torch.load(path)["hook"])                              # before the first step

The new attempt then counts from the step after the checkpoint, and replaces the later steps of the crashed
attempt. Without this state a new attempt counts from 0 and replaces all earlier steps. Threads: the training
thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tdcore.errors import ConfigError
from tdcore.hooks.clock import Clock
from tdcore.modes import ModeKeys

__all__ = ["StepStateDict"]


class StepStateDict:
    """The part of a hook that is stored in checkpoints."""

    _clock: Clock
    _notes: dict[str, Any]
    _off: bool

    def state_dict(self) -> dict[str, Any]:
        """Step numbers for a checkpoint: {"step": 199, "mode_steps": {"TRAIN": 199, ...}}; -1: no step yet.

        A worker that captures nothing counts no steps. Store the state of a worker that captures.
        """
        steps = self._clock.mode_steps
        return {
            "step": self._clock.last,
            "mode_steps": {mode.name: steps[mode.value] for mode in ModeKeys},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the step numbers of a checkpoint. A mode that is missing in `state` has had no step.

        Raises ConfigError if `state` is not a result of state_dict(), or if a step has begun.
        """
        step, mode_steps = _checked(state)
        if self._clock.begun:
            raise ConfigError(
                f"load_state_dict() was called after global step {self._clock.last} had begun; "
                "load the hook's state before the first forward"
            )
        self._clock.resume(step, mode_steps)
        if not self._off:
            self._notes["resumed_after_step"] = step


def _checked(state: Mapping[str, Any]) -> tuple[int, dict[ModeKeys, int]]:
    known = {mode.name: mode for mode in ModeKeys}
    mode_steps = state.get("mode_steps") if isinstance(state, Mapping) else None
    if not isinstance(mode_steps, Mapping) or not _is_count(state.get("step")):
        raise ConfigError(f"expected the result of state_dict(): 'step' and 'mode_steps', got {state!r}")
    wrong = {name: step for name, step in mode_steps.items() if name not in known or not _is_count(step)}
    if wrong:
        raise ConfigError(f"mode_steps must be counts for some of {list(known)}, got {wrong}")
    return state["step"], {known[name]: step for name, step in mode_steps.items()}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= -1
