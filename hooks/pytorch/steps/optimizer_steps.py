"""OptimizerSteps: capture of gradients and end of training steps when optimizers step.

Threads: the training thread, or threads of autograd if an optimizer steps inside backward(); one at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from torch.optim import Optimizer

from tdcore.hooks.pytorch.steps.driver_state import NONE_OPEN, TRAIN
from tdcore.hooks.pytorch.steps.root import Root
from tdcore.hooks.pytorch.steps.step_transitions import StepTransitions

__all__ = ["OptimizerSteps"]

_UNSEEN = (
    "an optimizer stepped, and no forward of {} was detected before: the step has gradients and weights, but "
    "no outputs; from the next step on, modules that the script calls directly are detected"
)


class OptimizerSteps(StepTransitions):
    """The part of the hook that optimizers call (step_hooks.py)."""

    def _is_ours(self, optimizer: Optimizer) -> bool:
        return id(optimizer) in self._ours or self._owns(optimizer)

    def _owns(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer holds parameters of a root. Computed once for each optimizer."""
        identity = id(optimizer)
        groups = len(optimizer.param_groups)
        if identity in self._foreign and self._groups.get(identity) == groups:
            return False
        self._groups[identity] = groups
        mine = False
        for root in self._roots:
            if root.parameters.register(optimizer):
                mine = True
                if root in self._watched and not root.unseen:
                    root.sentinel.take_off()
                    self._watched.remove(root)
        known_as = self._ours if mine else self._foreign
        known_as[identity] = weakref.ref(optimizer, lambda _: known_as.pop(identity, None))
        return mine

    def _before_optimizer(self, optimizer: Optimizer) -> None:
        """Handle the start of an optimizer's step, in a saved step or if its forwards may be unobserved."""
        start = perf_counter_ns()
        try:
            updates = self._updates
            if NONE_OPEN in updates or id(optimizer) in updates:
                self._begin_without_forward(optimizer)
            elif self._called is not None and not self._mode:
                self._learn_eval(optimizer)
            if self._saves_training:
                for root in self._roots:
                    root.parameters.before_step(optimizer)
        except Exception as error:
            self._fault("parameters", error)
        self._recorder.spent_ns += perf_counter_ns() - start

    def _begin_without_forward(self, optimizer: Optimizer) -> None:
        """Begin a step if an optimizer steps without an observed training forward since its last step."""
        if self._by_hand or self._by_forward or not self._is_ours(optimizer):
            return
        roots = [root for root in self._roots if root.parameters.optimizers.find(optimizer) is not None]
        evaluated = self._called is not None and not self._mode and self._learn_eval(optimizer)
        first = NONE_OPEN in self._updates
        if not (evaluated or first or any(root.sentinel.seen for root in roots)):
            return  # the optimizer steps twice in one step
        for root in roots if not evaluated else ():
            self._watch_entries(root)
        self._start_training(self._mode or TRAIN)
        self._timer.begin_optimizer()

    def _learn_eval(self, optimizer: Optimizer) -> bool:
        """Detect roots that train in eval mode: their optimizer steps after a forward in eval mode."""
        mine = False
        for root in self._roots:
            if root.evaluated_with_grad and root.parameters.optimizers.any_alive:
                mine = mine or root.parameters.optimizers.find(optimizer) is not None
        for root in self._roots if mine else ():
            if root.evaluated_with_grad and root.parameters.optimizers.any_alive:
                root.learn_eval()
        return mine

    def _watch_entries(self, root: Root) -> None:
        root.unseen = root.entries.used = True
        root.follows = False
        root.entries.put_on()
        self._watch_backwards(root)
        name = root.view.root_name
        self._warn(_UNSEEN.format(name))
        self._notes["forwards_not_seen"] = sorted({name, *self._notes.get("forwards_not_seen", [])})

    def _stepped_again(self, optimizer: Optimizer) -> None:
        """Start observing backwards, after an optimizer has stepped twice without a training forward."""
        for root in self._roots:
            if root.parameters.optimizers.find(optimizer) is not None and not root.unseen:
                root.unseen = root.parameters.steps_again = True
                self._guarded("steps", self._watch_backwards, root)

    def _before_closure(
        self,
        optimizer: Optimizer,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wrap: Callable[[Any], Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Handle the start of a step with a closure. Return the arguments with a wrapped closure, or None."""
        try:
            if not (self._saves_training or NONE_OPEN in self._updates or self._may_be_saved_next()):
                return None
            self._inside, self._attentive = weakref.ref(optimizer), True
            if not self._is_ours(optimizer):
                return None
            if self._saves_training and id(optimizer) not in self._updates:
                for root in self._roots:
                    root.parameters.before_closure(optimizer)
        except Exception as error:
            self._fault("parameters", error)
            return None
        rest = tuple(wrap(value) if callable(value) else value for value in args[1:])
        return (args[0], *rest), {key: wrap(one) if callable(one) else one for key, one in kwargs.items()}

    def _after_evaluation(self, optimizer: Optimizer) -> None:
        """Capture the gradients that the optimizer uses, after its closure has returned."""
        if self._off:
            return
        start = perf_counter_ns()
        if NONE_OPEN in self._updates or id(optimizer) in self._updates:
            self._guarded("steps", self._begin_without_forward, optimizer)
        if not self._saves_training:
            return
        for root in self._roots:
            self._guarded("parameters", root.parameters.before_step, optimizer)
        self._recorder.spent_ns += perf_counter_ns() - start

    def _after_optimizer(self, optimizer: Optimizer) -> None:
        start = perf_counter_ns()
        self._inside = None
        if self._saves_training:
            self._saved_updates[id(optimizer)] = self._saved_steps
        self._attentive = self._saves_training or bool(self._watched) or NONE_OPEN in self._updates
        try:
            for root in self._roots:
                root.parameters.after_step(optimizer)
                root.sentinel.seen = False
            self._forget_captured()
        except Exception as error:
            self._fault("parameters", error)
            return
        self._recorder.spent_ns += perf_counter_ns() - start
        if self._control_changed() and self._is_ours(optimizer):
            self._check_control()

    def _forget_captured(self) -> None:
        """Mark the step as captured if no gradient remains to be captured at its end."""
        for root in self._roots:
            if root.parameters.pending is not None:
                return
        self._saves_training = False
        self._attentive = self._attentive and (bool(self._watched) or NONE_OPEN in self._updates)
        may_be_attached = self._suspended is not None or bool(self._losses.attached)
        rests = self._suspended is None and self._called is None and not self._by_hand
        for root in self._roots:
            if rests:
                root.rest()
            may_be_attached = (
                may_be_attached
                or root.module_hooks.step is not None
                or root.module_hooks.has_pending_backward
            )
        self._may_be_attached = may_be_attached
        self._busy = may_be_attached or bool(self._watched) or bool(self._scalers.found)
