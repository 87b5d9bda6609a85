"""CapturedStep: the function that takes the place of a step in the script.

Threads: the training thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

from tdcore.hooks.jax.step_functions import CapturingFunctions
from tdcore.hooks.jax.step_values import Path, argument_names

if TYPE_CHECKING:
    from tdcore.hooks.jax.driver import StepDriver

__all__ = ["CapturedStep"]

Loss = Callable[[Any], Any]


class CapturedStep:
    """A step of a script, whose calls are steps of a hook.

    Attributes of the step itself, such as `lower` of a compiled function, are those of this object too.

    Args:
        hook: The hook.
        step: The function of the script.
        mode: ModeKeys value of the steps.
        loss: Returns the loss from the result of the step; None: it is found.
    """

    def __init__(self, hook: StepDriver, step: Callable[..., Any], mode: int, loss: Loss | None) -> None:
        functools.update_wrapper(self, step, updated=())
        self.mode = mode
        self.step = step
        self.loss = loss
        self.is_compiled = hasattr(_innermost(step), "lower")
        self.uncapturable = False
        self.argument_names = argument_names(step)
        self.further: set[Path] = set()
        self.functions = CapturingFunctions(
            step, self.further, hook._modules, hook._note_uncaptured, hook._fault, own_loss=loss is not None
        )
        self._run = hook._run_step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        return self._run(self, args, kwargs)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """Make a method of a captured function of a class."""
        return self if owner is None else MethodType(self, owner)

    def __getattr__(self, name: str) -> Any:
        """An attribute of the step itself."""
        if name == "step":
            raise AttributeError(name)
        return getattr(self.step, name)


def _innermost(step: Any) -> Any:
    while isinstance(step, functools.partial):
        step = step.func
    return getattr(step, "__func__", step) if not hasattr(step, "lower") else step
