"""The hooks that stay attached between steps: pre-hooks of root modules, and hooks of all optimizers.

Threads: the threads of the training, and those of replicas. A root keeps the hook alive; optimizers do not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from tdcore.errors import StopTraining
from tdcore.hooks.pytorch.compile.compile_regions import UncapturedModules, can_insert_call, report_uncaptured
from tdcore.hooks.pytorch.compile.operator import (
    is_compiling,
    never_trace,
    observe,
    plain_tensors,
    register_observer,
    skip_frames,
)
from tdcore.hooks.pytorch.model.flatten import flatten_tensors
from tdcore.hooks.pytorch.model.pickling import InertInCopies
from tdcore.hooks.pytorch.steps.compiled_steps import begin_compiled_forward

if TYPE_CHECKING:
    from tdcore.hooks.pytorch.steps.driver import TrainingDriver
    from tdcore.hooks.pytorch.steps.root import Root

__all__ = ["ClosureWrapper", "ForwardPreHook", "optimizer_step_hooks"]

_GRAD, _NO_GRAD = "grad", "no grad"


class ForwardPreHook(InertInCopies):
    """Forward pre-hook of a root, or of the module inside a wrapped root.

    The pre-hook refers to the Hook, so that the model keeps the Hook alive. If the call of the root is
    compiled, the pre-hook inserts an operator that reports the start of the forward.
    """

    __slots__ = ("compiled", "hook", "label", "observer_number", "root")

    def __init__(self, hook: TrainingDriver, root: Root) -> None:
        self.hook = hook
        self.root = root
        self.compiled = root.compiled
        self.observer_number = register_observer(self)
        self.label = str(int(self.observer_number))

    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Begin the forward, as a forward pre-hook."""
        if is_compiling():
            if self.root.reference() is module:
                self._trace((*args, kwargs) if kwargs else args)
            return
        try:
            self.hook._on_forward(self.root, module, args, kwargs)
        except StopTraining:
            raise
        except Exception as error:
            self.hook._fault("steps", error)

    def _trace(self, value: Any) -> None:
        if not can_insert_call(True):
            report_uncaptured(self.label)
            return
        head = _GRAD if torch.is_grad_enabled() else _NO_GRAD
        if self.compiled.capture_disabled:
            observe(self.observer_number, [], head)
            return
        values, suffixes = plain_tensors(list(flatten_tensors(value[0] if len(value) == 1 else value)))
        observe(self.observer_number, values, "\n".join([head, *suffixes] if suffixes else [head, ""]))

    def observed(self, values: list[torch.Tensor], what: str) -> None:
        """Begin the forward. Called by compiled code. values: The root's input, if hooks are attached."""
        grad, hooks, suffixes = what.partition("\n")
        with torch.set_grad_enabled(grad == _GRAD):  # compiled code runs with gradients disabled
            begin_compiled_forward(self.hook, self.root, (values, suffixes) if hooks else None)

    def report_uncaptured(self, operator: str) -> None:
        """Note that compiled code cannot report the start of the forward, which therefore starts no step."""
        UncapturedModules(self.hook._notes).note(self.root.view.root_name, operator)


skip_frames(ForwardPreHook.__call__)


class ClosureWrapper:
    """Wrapper of an optimizer's closure, in steps that may be saved. Captures gradients after each call."""

    def __init__(
        self, hook: Callable[[], Any], optimizer: weakref.ref[Optimizer], closure: Callable[..., Any]
    ) -> None:
        self._hook = hook
        self._optimizer = optimizer
        self._closure = closure

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the closure."""
        result = self._closure(*args, **kwargs)
        hook, optimizer = self._hook(), self._optimizer()
        if hook is not None and optimizer is not None:
            try:
                hook._after_evaluation(optimizer)
            except Exception as error:
                hook._fault("steps", error)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._closure, name)


def optimizer_step_hooks(hook_ref: weakref.ref[Any]) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Return the optimizer hooks for all optimizers of the process. They do not keep the Hook alive."""

    def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hook: TrainingDriver | None = hook_ref()
        if hook is None or hook._off:
            return None
        hook._timer.begin_optimizer()
        try:
            if (len(args) > 1 or kwargs) and any(map(callable, (*args[1:], *kwargs.values()))):
                wrap = partial(ClosureWrapper, hook_ref, weakref.ref(optimizer))
                return hook._before_closure(optimizer, args, kwargs, wrap)
            if hook._attentive:
                hook._before_optimizer(optimizer)
        except StopTraining:
            raise
        except Exception as error:
            hook._fault("steps", error)
        return None

    def after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hook: TrainingDriver | None = hook_ref()
        if hook is None or hook._off:
            return
        hook._timer.end_optimizer()
        try:
            identity = id(optimizer)
            if identity in hook._ours or hook._owns(optimizer):
                updates = hook._updates
                if identity in updates:
                    hook._stepped_again(optimizer)
                updates.add(identity)
            if hook._attentive:
                hook._after_optimizer(optimizer)
        except StopTraining:
            raise
        except Exception as error:
            hook._fault("steps", error)

    never_trace(before, after, ClosureWrapper.__call__)
    skip_frames(before, after, ClosureWrapper.__call__)
    return before, after
