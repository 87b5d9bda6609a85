"""What sits on the root module and on all optimizers between steps, and calls the hook.

Threads: those of the training, replicas' included. The module keeps the hook alive, the optimizers do not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from tdcore.hooks.pytorch.compiled import CompiledRoot
from tdcore.hooks.pytorch.compiled_steps import begin_compiled_forward
from tdcore.hooks.pytorch.model import leaves
from tdcore.hooks.pytorch.operator import is_compiling, number_of, observe, skip_frames
from tdcore.hooks.pytorch.tap import InertInCopies

if TYPE_CHECKING:
    from tdcore.hooks.pytorch.hook import Hook

__all__ = ["StepSignal", "optimizer_signals"]


_GRAD = "grad"


class StepSignal(InertInCopies):
    """The root's forward pre-hook. Holds the hook: the model keeps it alive.

    Where the call of the root is compiled it leaves an operator that tells when the forward begins.
    """

    __slots__ = ("compiled", "hook", "who")

    def __init__(self, hook: Hook, compiled: CompiledRoot) -> None:
        self.hook = hook
        self.compiled = compiled
        self.who = number_of(self)

    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """As a forward pre-hook."""
        if is_compiling():
            self._trace((*args, kwargs) if kwargs else args)
            return
        self.hook._on_forward(module, args, kwargs)

    def _trace(self, value: Any) -> None:
        found = [] if self.compiled.asleep else list(leaves(value[0] if len(value) == 1 else value))
        ends = [end for end, _ in found]
        what = "\n".join([_GRAD if torch.is_grad_enabled() else "", *ends])
        observe(self.who, [tensor for _, tensor in found], what)

    def observed(self, values: list[torch.Tensor], what: str) -> None:
        """As what compiled code calls when the root's forward begins. values: its input, with taps."""
        grad, _, ends = what.partition("\n")
        with torch.set_grad_enabled(grad == _GRAD):  # compiled code runs with it switched off
            begin_compiled_forward(self.hook, values, ends)


skip_frames(StepSignal.__call__)


def optimizer_signals(hook_ref: weakref.ref[Hook]) -> tuple[Callable[..., None], Callable[..., None]]:
    """Hooks for all optimizers of the process. They do not keep the hook alive."""

    def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hook = hook_ref()
        if hook is None or hook._off or hook._parameters is None:
            return
        parameters = hook._parameters
        if parameters.owed is not None or len(args) > 1 or kwargs:
            hook._before_optimizer(parameters, optimizer, (*args[1:], *kwargs.values()))

    def after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hook = hook_ref()
        if hook is None or hook._off or hook._parameters is None:
            return
        parameters = hook._parameters
        parameters.inside_step = False
        if parameters.owed is not None or hook._asked():
            hook._after_optimizer(parameters, optimizer)

    return before, after
