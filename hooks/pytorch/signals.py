"""What sits on the root module and on all optimizers between steps, and calls the hook.

Threads: those of the training, replicas' included. The module keeps the hook alive, the optimizers do not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from tdcore.hooks.pytorch.bodies import Untraced, traceable, untraced
from tdcore.hooks.pytorch.compiled_steps import begin_compiled_forward
from tdcore.hooks.pytorch.leaves import leaves
from tdcore.hooks.pytorch.operator import (
    is_compiling,
    never_trace,
    number_of,
    observe,
    plain,
    skip_frames,
)
from tdcore.hooks.pytorch.tap import InertInCopies

if TYPE_CHECKING:
    from tdcore.hooks.pytorch.hook import Hook
    from tdcore.hooks.pytorch.parameters import ParameterCapture
    from tdcore.hooks.pytorch.roots import Further

__all__ = ["StepSignal", "optimizer_signals"]

_GRAD, _NO_GRAD = "grad", "no grad"


class Watcher(Protocol):
    """What optimizers call: a hook, or one of its further roots."""

    @property
    def _off(self) -> bool: ...

    @property
    def _parameters(self) -> ParameterCapture | None: ...

    @property
    def _asked(self) -> Callable[[], bool]: ...

    def _before_optimizer(
        self, parameters: ParameterCapture, optimizer: Optimizer, closure: bool, /
    ) -> None: ...

    def _after_optimizer(self, parameters: ParameterCapture, optimizer: Optimizer, /) -> None: ...


class StepSignal(InertInCopies):
    """A root's forward pre-hook. Holds the hook: each of its models keeps it alive.

    watched: the hook itself where the root is the clock, or a further root. Where the call of the root is
    compiled it leaves an operator that tells when the forward begins.
    """

    __slots__ = ("compiled", "hook", "label", "watched", "who")

    def __init__(self, hook: Hook, watched: Hook | Further) -> None:
        self.hook = hook
        self.watched = watched
        self.compiled = watched._compiled
        self.who = number_of(self)
        self.label = str(int(self.who))

    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """As a forward pre-hook."""
        if is_compiling():
            self._trace((*args, kwargs) if kwargs else args)
            return
        self.watched._on_forward(module, args, kwargs)

    def _trace(self, value: Any) -> None:
        if not traceable(True):
            untraced(self.label)
            return
        head = _GRAD if torch.is_grad_enabled() else _NO_GRAD
        if self.compiled.asleep:
            observe(self.who, [], head)
            return
        values, ends = plain(list(leaves(value[0] if len(value) == 1 else value)))
        observe(self.who, values, "\n".join([head, *ends] if ends else [head, ""]))

    def observed(self, values: list[torch.Tensor], what: str) -> None:
        """As what compiled code calls when the root's forward begins. values: its input, with taps."""
        grad, taps, ends = what.partition("\n")
        with torch.set_grad_enabled(grad == _GRAD):  # compiled code runs with it switched off
            begin_compiled_forward(self.hook, self.watched, (values, ends) if taps else None)

    def untraced(self, operator: str) -> None:
        """Code is compiled in which the forward cannot be seen to begin: it starts no step."""
        parameters = self.watched._parameters
        if parameters is not None:
            Untraced(self.hook._notes).tell(parameters.view.root_name, operator)


skip_frames(StepSignal.__call__)


def optimizer_signals(hook_ref: weakref.ref[Any]) -> tuple[Callable[..., None], Callable[..., None]]:
    """Hooks for all optimizers of the process. They do not keep the hook alive."""

    def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hook: Watcher | None = hook_ref()
        if hook is None or hook._off:
            return
        parameters = hook._parameters
        if parameters is None:
            return
        if len(args) > 1 or kwargs:
            closure = any(map(callable, (*args[1:], *kwargs.values())))
            hook._before_optimizer(parameters, optimizer, closure)
        elif parameters.owed is not None:
            hook._before_optimizer(parameters, optimizer, False)

    def after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hook: Watcher | None = hook_ref()
        if hook is None or hook._off:
            return
        parameters = hook._parameters
        if parameters is None:
            return
        parameters.inside_step = False
        if parameters.owed is not None or parameters.updates.pending or hook._asked():
            hook._after_optimizer(parameters, optimizer)

    never_trace(before, after)
    skip_frames(before, after)
    return before, after
