"""Roots: further models that one hook watches, beside the one whose forward is the clock.

The first registered module is the clock. A further one (a discriminator, a teacher) never starts a step: what
its forwards give, its weights and its gradients go under the step that is running, which its first forward
there joins. Where networks take turns, hook.step() at the top of the loop says best what a step is.

    first root      names as of a single one: conv1_output_0, Generator_conv1.weight
    further roots   Critic.conv1_output_0, Critic_conv1.weight; Critic_output_0 for itself; the second of one
                    class is called Critic_1, and so on, in order of registration

Threads: the training thread. Keeps no model alive; ends with the model, or with the hook.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tdcore.hooks.clock import Stamp
from tdcore.hooks.devices import prepare_devices
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.compiled import CompiledRoot, compile_in_use, hide
from tdcore.hooks.pytorch.compiled_steps import note_missed, widest
from tdcore.hooks.pytorch.model import ModelView, cuda_devices
from tdcore.hooks.pytorch.parameters import ParameterCapture
from tdcore.hooks.pytorch.signals import StepSignal, optimizer_signals
from tdcore.hooks.pytorch.tap import graph_task
from tdcore.hooks.pytorch.taps import Arguments, Taps
from tdcore.modes import ModeKeys

if TYPE_CHECKING:
    from tdcore.hooks.pytorch.hook import Hook

__all__ = ["Roots", "switch_off"]

_WITH_GRADIENTS = (ModeKeys.TRAIN.value, ModeKeys.GLOBAL.value)


class Further:
    """A root that is not the clock. name: what it goes by.

    Stands in for the hook where optimizers call it (signals.py).
    """

    def __init__(self, hook: Hook, module: nn.Module, name: str) -> None:
        self._root = weakref.ref(module)
        self._compiled = CompiledRoot()
        self._compiled.met = compile_in_use()  # until it is called as it is
        self._hook = weakref.ref(hook)
        self._joined: tuple[Stamp, bool] | None = None  # last step it took part in, whether for gradients
        self._parameters = ParameterCapture(
            module,
            hook._recorder,
            hook._notes,
            hook._warn,
            weakref.WeakMethod(hook._fault),
            name=name,
            numbers=hook._numbers,
            scalers=hook._parameters.scalers if hook._parameters else None,
        )
        self._taps = Taps(
            hook._recorder,
            weakref.WeakMethod(hook._fault),
            weakref.WeakMethod(self._end_forward),
            hook._warn,
            hook._notes,
            self._compiled,
        )

    @property
    def view(self) -> ModelView:
        """Its names."""
        return self._parameters.view

    @property
    def _off(self) -> bool:
        hook = self._hook()
        return hook is None or hook._off

    def _asked(self) -> bool:
        return False  # the hook asks, at the same optimizer

    def _on_forward(
        self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object] | None
    ) -> None:
        """Its forward begins. kwargs: None when compiled code tells it."""
        hook = self._hook()
        if hook is None or hook._off or hook._clock.plan is None or module is not self._root():
            return
        if (graph_task is not None and graph_task() != -1) or torch._C._get_tracing_state() is not None:
            return
        start, spent = perf_counter_ns(), hook._recorder.spent_ns
        hook._guarded("parameters", self._join, hook, module, hook._clock.plan)
        arguments = (args, kwargs) if kwargs is not None else None
        self._compiled.met = arguments is None
        hook._guarded("activations", self._attach, hook, module, hook._clock.plan, arguments)
        hook._recorder.spent_ns = spent + perf_counter_ns() - start

    def _join(self, hook: Hook, module: nn.Module, plan: Plan) -> None:
        """It takes part in the step that is running."""
        stamp, parameters = hook._clock.now.stamp, self._parameters
        gradients = stamp.mode in _WITH_GRADIENTS and torch.is_grad_enabled()
        if gradients:  # a frozen one has no optimizer to pay for its weights: they are taken at once
            gradients = any(parameter.requires_grad for parameter in module.parameters())
        before = self._joined
        if before is None or before[0] != stamp:
            parameters.start_step(stamp, plan, gradients=gradients)
        elif gradients and not before[1]:
            parameters.start_step(stamp, plan, gradients=True, weights=False)
        else:
            gradients = before[1]
        self._joined = stamp, gradients

    def _attach(self, hook: Hook, module: nn.Module, plan: Plan, arguments: Arguments | None) -> None:
        view = self._parameters.current_view()
        hook._guarded("gradient order", self._parameters.watch_backward)
        if arguments is None and not self._taps.is_on:
            note_missed(hook)
            return
        due = self._parameters.due_after_forward
        self._taps.attach(module, view, plan, arguments, watch_end=due, also=widest(hook))

    def begin_step(self, hook: Hook) -> None:
        """A step begins. Now it is known whether it is saved."""
        if hook._clock.plan is None:
            self._compiled.asleep = True
            if self._taps.is_on:
                self._taps.detach()
        elif self._compiled.met and not self._taps.is_on:
            self.arm(hook)

    def arm(self, hook: Hook) -> None:
        """The next forward may be compiled, and then its taps must be on before it.

        It may be one more of the running step, or of the next one: one function that is compiled may hold
        the calls of all roots.
        """
        saved, root = hook._clock.plan is not None, self._root()
        due = self._compiled.met and (saved or (not hook._by_hand and hook._clock.may_save_next()))
        self._compiled.asleep = not due
        if due and root is not None:
            hook._taps.left_on = True  # so that a step that is not saved takes them off
            view, nothing = self._parameters.current_view(), hook._clock.plan_of(())
            self._taps.attach(root, view, nothing, None, watch_end=True, also=widest(hook))

    def _end_forward(self) -> None:
        hook = self._hook()
        if hook is None:
            return
        start = perf_counter_ns()
        hook._guarded("modules without calls", self._taps.forward_ended)
        if not hook._off:
            hook._guarded("parameters", self._parameters.end_forward)
            if self._compiled.met:
                hook._guarded("activations", self.arm, hook)
        hook._recorder.spent_ns += perf_counter_ns() - start

    def _before_optimizer(self, parameters: ParameterCapture, optimizer: Optimizer, closure: bool) -> None:
        hook = self._hook()
        if hook is not None:
            hook._before_optimizer(parameters, optimizer, closure)

    def _after_optimizer(self, parameters: ParameterCapture, optimizer: Optimizer) -> None:
        hook = self._hook()
        if hook is not None:
            hook._after_optimizer(parameters, optimizer)


class Roots:
    """The further roots of one hook."""

    def __init__(self) -> None:
        self._further: list[Further] = []
        self.some = False  # there are any

    def add(self, hook: Hook, module: nn.Module, stack: ExitStack) -> None:
        """Watches one more. stack: what takes it off again."""
        if any(further._root() is module for further in self._further):
            return
        further = Further(hook, module, self._name(hook, module))
        with ExitStack() as own:
            signal = StepSignal(hook, further)
            own.callback(module.register_forward_pre_hook(signal, with_kwargs=True).remove)
            before, after = optimizer_signals(weakref.ref(further))
            own.callback(register_optimizer_step_pre_hook(before).remove)
            own.callback(register_optimizer_step_post_hook(after).remove)
            stack.enter_context(own.pop_all())
        self._further.append(further)
        self.some = True
        if compile_in_use():
            stack.callback(hide(module))
            hook._guarded("activations", further.arm, hook)
        hook._guarded("devices", prepare_devices, hook._ring, cuda_devices(module), hook._warn)

    def parameters(self) -> list[ParameterCapture]:
        """Of each."""
        return [further._parameters for further in self._further]

    def resolve_modules(self, hook: Hook) -> None:
        """Collections that name modules, of any root, get patterns for the names of their tensors."""
        if hook._parameters is None:
            return
        views = [*(further.view for further in self._further), hook._parameters.view]
        names = {id(module.module()): module.name for view in views for module in view.modules}
        for collection in hook._collections:
            collection.resolve_modules(lambda module: names.get(id(module)))

    def before_forward(self) -> None:
        """The clock's step begins: what they owe from an earlier one may have been skipped."""
        for further in self._further:
            if further._taps.unsettled:
                further._taps.settle()
            if further._parameters.owed is not None:
                further._parameters.before_forward()

    def begin_step(self, hook: Hook) -> None:
        """The clock's step has begun."""
        for further in self._further:
            further.begin_step(hook)

    def finish(self) -> None:
        """Captures what they owe."""
        for further in self._further:
            further._parameters.finish()
            further._taps.settle()

    def detach(self) -> None:
        """Takes their taps off."""
        for further in self._further:
            further._taps.detach()

    def switch_off(self, part: str) -> None:
        """Stops the part of the hook that failed."""
        for further in self._further:
            switch_off(part, further._taps, further._parameters)

    def _name(self, hook: Hook, module: nn.Module) -> str:
        """A name that no root has, and that is no beginning of a name of the first root's modules."""
        views = [parameters.view for parameters in [hook._parameters, *self.parameters()] if parameters]
        taken = {view.root_name for view in views}
        taken |= {one.name.split(".")[0] for view in views[:1] for one in view.modules}
        name = base = type(module).__name__
        number = 0
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        return name


def switch_off(part: str, taps: Taps, parameters: ParameterCapture | None) -> None:
    """Stops one part of what watches a root."""
    if part in ("activations", "losses"):
        taps.switch_off()
    elif part == "output gradients":
        taps.switch_off_output_gradients()
    elif part == "steps":
        taps.detach()
        taps.detach_losses()
    if parameters is not None:
        if part in ("parameters", "steps"):
            parameters.switch_off()
        elif part == "gradient order":
            parameters.arrivals.switch_off()
