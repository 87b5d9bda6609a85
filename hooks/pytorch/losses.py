"""Registered loss modules: their outputs, and their inputs where these are asked for, as rows of the right
step.

A loss that requires gradients belongs to the open training step, any other to the step that began last. The
two differ while an evaluation runs within a training step: then loss modules carry the hooks of both.

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
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.bodies import Untraced
from tdcore.hooks.pytorch.compiled import CompiledRoot, SecondVariant, Sites
from tdcore.hooks.pytorch.leaves import leaves
from tdcore.hooks.pytorch.model import Module
from tdcore.hooks.pytorch.operator import is_compiling, skip_frames
from tdcore.hooks.pytorch.tap import Fault, Tap, prefix_of
from tdcore.hooks.pytorch.taps import Attached, Choice, may_take, put_on, take_off
from tdcore.hooks.recorder import Recorder

__all__ = ["LossHooks", "Router", "requires_grad"]

# The step that a value belongs to, as a context in which it is current; None: it belongs to the other hook.
Router = Callable[[object], "AbstractContextManager[None] | None"]


def requires_grad(value: object) -> bool:
    """Whether any tensor of a nested value takes part in a backward."""
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    return any(tensor.requires_grad for _, tensor in leaves(value))


class RoutedTap(Tap):
    """A tap that captures only the values of one step. router: tells which."""

    __slots__ = ("router",)

    router: Router | None

    def __call__(self, module: nn.Module, args: tuple[object, ...], last: Any = None) -> None:
        """As a forward hook, or a pre-hook with keyword arguments. Never raises."""
        router = self.router
        if router is None or is_compiling():
            Tap.__call__(self, module, args, last)
            return
        try:
            step = router((args, last) if self.is_input else last)
            if step is not None:
                with step:
                    Tap.__call__(self, module, args, last)
        except Exception as error:
            self.failed(error)


skip_frames(RoutedTap.__call__)


class LossHooks:
    """The loss modules of one hook. gate: of the first root; compiled losses rest while it sleeps."""

    def __init__(self, recorder: Recorder, fault: Fault, notes: dict[str, Any], gate: CompiledRoot) -> None:
        self.modules: list[Module] = []
        self.attached: Attached = []  # not empty: loss modules carry hooks of the current step
        self._of_training: Attached = []  # ..., and of the training step that is open beneath it
        self._off = False
        self._recorder = recorder
        self._fault = fault
        self._gate = gate
        self._sites = Sites(Untraced(notes))
        self._variant = SecondVariant()
        keys = [RemovableHandle(OrderedDict()).id for _ in range(2)]  # unique among all hooks of the process
        self._key, self._training_key = keys
        self._unhook, self._unhook_training = (methodcaller("pop", key, None) for key in keys)

    def add(self, criterion: nn.Module) -> None:
        """One more. Two of one class get a number in their name."""
        origin = type(criterion).__name__
        alike = sum(known.origin == origin for known in self.modules)
        name = f"{origin}_{alike}" if alike else origin
        self.modules.append(Module(weakref.ref(criterion), name, origin))

    def attach(self, plan: Plan, also: Plan | None = None, router: Router | None = None) -> None:
        """A step begins that is saved. also: as for Taps.attach(). router: None: all values belong to it."""
        if self._off or not self.modules:
            return
        choice = self._choice("losses", plan, also, router)
        self.detach()
        put_on(choice, self._key, self.attached)
        if also is not None:
            self._variant.enter(choice.taps)

    def attach_beneath(self, plan: Plan, router: Router) -> None:
        """Another step begins within a training step that is saved. plan, router: of the training step."""
        if self._off or not self.modules:
            return
        self.detach_beneath()
        choice = self._choice("losses beneath", plan, None, router)
        put_on(choice, self._training_key, self._of_training)

    def detach(self) -> None:
        """A step begins that is not saved, or the hook is closed."""
        self._variant.leave()
        take_off(self.attached, self._unhook)

    def detach_beneath(self) -> None:
        """The training step goes on, or is over."""
        take_off(self._of_training, self._unhook_training)

    def switch_off(self) -> None:
        """Captures nothing from now on."""
        self._off = True
        self.detach()
        self.detach_beneath()

    def _choice(self, what: str, plan: Plan, also: Plan | None, router: Router | None) -> Choice:
        question = (len(self.modules), also)
        known: tuple[tuple[int, Plan | None], Choice] | None = plan.cache.get(what)
        if known is None or known[0] != question:
            known = plan.cache[what] = (question, self._choose(plan, also or plan))
        choice = known[1]
        if any(loss.module() is None for loss in self.modules):
            choice = choice.only(lambda tap: tap.module() is not None)
        for tap in choice.taps:
            tap.router = router  # type: ignore[attr-defined]  # all are made below
        return choice

    def _choose(self, plan: Plan, widest: Plan) -> Choice:
        def taps(kind: TensorKind) -> list[Tap]:
            takers = [loss for loss in self.modules if may_take(widest, loss, kind)]
            return [self._tap(loss, kind, plan) for loss in takers]

        return Choice(taps(TensorKind.INPUT), taps(TensorKind.LOSS))

    def _tap(self, module: Module, kind: TensorKind, plan: Plan) -> Tap:
        site = self._sites.at(prefix_of(module, kind))
        tap = RoutedTap(module, kind, plan, self._recorder, self._fault, site, gate=self._gate)
        tap.router = None
        return tap
