"""Capture of the outputs of registered loss modules, and of their inputs if requested, in the right step.

A loss that requires gradients belongs to the open training step. Any other loss belongs to the step that
began last. The two steps differ while an evaluation runs within a training step; loss modules then have the
hooks of both steps.

Threads: attach and detach in the training thread. Keeps no module alive.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import methodcaller
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tdcore.format.layout import TensorKind
from tdcore.hooks.faults import FaultHandler
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.compile.code_variants import CallSites, CaptureVariant, CompiledRoot
from tdcore.hooks.pytorch.compile.compile_regions import UncapturedModules
from tdcore.hooks.pytorch.compile.operator import is_compiling, skip_frames
from tdcore.hooks.pytorch.forward.hook_set import Attached, HookSet, may_hook, put_on, take_off
from tdcore.hooks.pytorch.forward.module_hooks import ModuleHook, prefix_of
from tdcore.hooks.pytorch.model.flatten import flatten_tensors
from tdcore.hooks.pytorch.model.model_view import Module
from tdcore.hooks.recorder import Recorder

__all__ = ["LossHooks", "Router", "requires_grad"]

# Returns a context in which the step of a value is current, or None if the value belongs to the other hook.
Router = Callable[[object], "AbstractContextManager[None] | None"]


def requires_grad(value: object) -> bool:
    """Whether a tensor in a nested value requires gradients."""
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    return any(tensor.requires_grad for _, tensor in flatten_tensors(value))


class RoutedLossHook(ModuleHook):
    """Module hook that captures only the values of one step. router: selects the values."""

    __slots__ = ("router",)

    router: Router | None

    def __call__(self, module: nn.Module, args: tuple[object, ...], last: Any = None) -> None:
        """Capture one call, as a forward hook, or as a pre-hook with keyword arguments. Never raises."""
        router = self.router
        if router is None or is_compiling():
            ModuleHook.__call__(self, module, args, last)
            return
        try:
            step = router((args, last) if self.is_input else last)
            if step is not None:
                with step:
                    ModuleHook.__call__(self, module, args, last)
        except Exception as error:
            self.failed(error)


skip_frames(RoutedLossHook.__call__)


class LossHooks:
    """The loss modules of one hook. gate: CompiledRoot of the first root; also disables compiled losses."""

    def __init__(
        self, recorder: Recorder, fault: FaultHandler, notes: dict[str, Any], gate: CompiledRoot
    ) -> None:
        self.modules: list[Module] = []
        self.attached: Attached = []  # not empty: loss modules have hooks of the current step
        self._of_training: Attached = []  # the same for the suspended training step
        self._off = False
        self._recorder = recorder
        self._fault = fault
        self._gate = gate
        self._sites = CallSites(UncapturedModules(notes))
        self._variant = CaptureVariant()
        keys = [RemovableHandle(OrderedDict()).id for _ in range(2)]  # unique among all hooks of the process
        self._key, self._training_key = keys
        self._unhook, self._unhook_training = (methodcaller("pop", key, None) for key in keys)

    def add(self, criterion: nn.Module) -> None:
        """Add a loss module. A second module of the same class gets a number in its name."""
        origin = type(criterion).__name__
        alike = sum(known.origin == origin for known in self.modules)
        name = f"{origin}_{alike}" if alike else origin
        self.modules.append(Module(weakref.ref(criterion), name, origin))

    def attach(self, plan: Plan, also: Plan | None = None, router: Router | None = None) -> None:
        """Attach the hooks when a saved step begins.

        Args:
            plan: The plan of the step.
            also: See ModuleHooks.attach().
            router: Selects the values that belong to the step; None: all values.
        """
        if self._off or not self.modules:
            return
        hook_set = self._hook_set("losses", plan, also, router)
        self.detach()
        put_on(hook_set, self._key, self.attached)
        if also is not None:
            self._variant.enter(hook_set.hooks)

    def attach_beneath(self, plan: Plan, router: Router) -> None:
        """Attach the hooks of a suspended training step when another step begins within it.

        Args:
            plan: The plan of the training step.
            router: Selects the values that belong to the training step.
        """
        if self._off or not self.modules:
            return
        self.detach_beneath()
        hook_set = self._hook_set("losses beneath", plan, None, router)
        put_on(hook_set, self._training_key, self._of_training)

    def detach(self) -> None:
        """Detach all hooks, when an unsaved step begins or the hook is closed."""
        self._variant.leave()
        take_off(self.attached, self._unhook)

    def detach_beneath(self) -> None:
        """Detach the hooks of the suspended training step, when the step continues or has ended."""
        take_off(self._of_training, self._unhook_training)

    def switch_off(self) -> None:
        """Stop the capture."""
        self._off = True
        self.detach()
        self.detach_beneath()

    def _hook_set(self, what: str, plan: Plan, also: Plan | None, router: Router | None) -> HookSet:
        question = (len(self.modules), also)
        known: tuple[tuple[int, Plan | None], HookSet] | None = plan.cache.get(what)
        if known is None or known[0] != question:
            known = plan.cache[what] = (question, self._select(plan, also or plan))
        hook_set = known[1]
        if any(loss.module() is None for loss in self.modules):
            hook_set = hook_set.filtered(lambda module_hook: module_hook.module() is not None)
        for module_hook in hook_set.hooks:
            module_hook.router = router  # type: ignore[attr-defined]  # every hook here is a RoutedLossHook
        return hook_set

    def _select(self, plan: Plan, widest: Plan) -> HookSet:
        def hooks(kind: TensorKind) -> list[ModuleHook]:
            takers = [loss for loss in self.modules if may_hook(widest, loss, kind)]
            return [self._new_hook(loss, kind, plan) for loss in takers]

        return HookSet(hooks(TensorKind.INPUT), hooks(TensorKind.LOSS))

    def _new_hook(self, module: Module, kind: TensorKind, plan: Plan) -> ModuleHook:
        site = self._sites.at(prefix_of(module, kind))
        module_hook = RoutedLossHook(module, kind, plan, self._recorder, self._fault, site, gate=self._gate)
        module_hook.router = None
        return module_hook
