"""Weights, gradients and optimizer state: one native call where the optimizer is about to step.

At the step pre-hook gradients are final (accumulated, unscaled) and weights are those that the forward saw. A
step that is saved therefore stays *owed* after its forward until an optimizer steps and pays; with gradient
accumulation the newest saved step is paid, under its own number.

    several optimizers      each pays for the parameters that it owns; frozen ones go with the first
    no optimizer seen yet   weights are captured when the forward ends (same values), gradients as above
    closure (LBFGS)         weights likewise, gradients when the step returns
    no optimizer at all     said once; gradients are read when the next forward starts
    eval, no_grad           weights when the forward ends, no gradients
    no backward             (or gradients gone at the next forward) rows without value: "absent"; when a
                            gradient scaler skipped it, "optimizer/found_inf" is 1 beside them (scaler.py)
    parameter unused        no gradient: a row "absent", which is not zero
    frozen parameter        no gradient row at all; listed under "frozen" in collections.json
    fused step with a gradient scaler   gradients are divided by the scale, which is recorded beside them

Optimizer state is that which enters the step.
Threads: the training thread, or the autograd thread that runs an optimizer inside backward(); one at a time.
Keeps no model, parameter or gradient alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tdcore.hooks.clock import Stamp
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.arrivals import Arrivals
from tdcore.hooks.pytorch.backward import BackwardTaps
from tdcore.hooks.pytorch.model import ModelView
from tdcore.hooks.pytorch.optimizer import (
    Known,
    Numbers,
    Optimizers,
    hyperparameter_values,
    state_values,
    unscaled,
)
from tdcore.hooks.pytorch.owed import Asked, Owed, Payment, asked, payment_of, versions_of
from tdcore.hooks.pytorch.remarks import Remarks
from tdcore.hooks.pytorch.scaler import Rows, ScaleRecord, Scalers
from tdcore.hooks.pytorch.selection import Selection, awaited, in_order, select
from tdcore.hooks.pytorch.series import noting
from tdcore.hooks.pytorch.sharded import in_place
from tdcore.hooks.pytorch.sparse import sparse_rows
from tdcore.hooks.pytorch.tap import Fault
from tdcore.hooks.pytorch.updates import Updates
from tdcore.hooks.recorder import Recorder

__all__ = ["ParameterCapture"]

_NOTHING: Mapping[int, Any] = {}
_CHANGED = (
    "weights of one saved step are not captured: something else than the optimizer's step changed them after "
    "its forward began; from then on weights are captured when the forward ends"
)
_GRADIENT, _REQUIRES_GRAD = attrgetter("grad"), attrgetter("requires_grad")
_DENSE = {torch.strided}
_LAYOUT, _NONE = repeat("layout"), repeat(None)


class ParameterCapture:
    """Captures the parameters of one model. notes: of collections.json. warn: says a message once.

    fault: BaseHook._fault, for what is extra (series.py): it fails alone.
    """

    def __init__(
        self,
        root: nn.Module,
        recorder: Recorder,
        notes: dict[str, Any],
        warn: Callable[[str], None],
        fault: Fault,
        *,
        name: str | None = None,
        numbers: Numbers,
        scalers: Scalers | None = None,
    ) -> None:
        self.view = ModelView(root, name)
        self._name = name
        self.owed: Owed | None = None
        self.scalers = scalers or Scalers()  # those of the process: all roots share them
        say = self._say = noting(notes, warn)
        self.updates = Updates(recorder, fault, say)
        self.backward = BackwardTaps(recorder, self.scalers, fault, say)
        self.inside_step = False  # an optimizer is running a closure
        self._root = weakref.ref(root)
        self._recorder = recorder
        self._remarks = Remarks(notes)
        self._warn = warn
        self._off = False
        self._weights_first = False  # they are taken when the forward ends, not before the optimizer's step
        self.due_after_forward = False  # end_forward() has something to do
        self._weights_due: tuple[Stamp, Plan] | None = None  # when the root's forward ends
        self._numbers = numbers
        self._optimizers = Optimizers(self._numbers)
        self.arrivals = Arrivals()
        self._note_aliases()

    # Called by the hook, in this order within a step ------------------------------------------------------

    def start_step(self, stamp: Stamp, plan: Plan, *, gradients: bool, weights: bool = True) -> None:
        """A step begins that is saved. gradients: a backward may follow. weights: they are not taken yet."""
        wanted = asked(plan)
        if self._off or not wanted.anything:
            return
        if self.arrivals.noting:
            self.arrivals.stop()
        if gradients:
            self._owe(stamp, plan, wanted, weights_done=not weights)
        if not weights:
            return
        if not gradients or self.inside_step or self._weights_first or not self._optimizers.any_alive:
            self._weights_due = (stamp, plan)
            self.due_after_forward = True

    def current_view(self) -> ModelView:
        """The names of the model's parts as it is now; reads the structure anew when it changed."""
        root = self._root()
        if root is not None and not self.view.matches(root):
            self.view = ModelView(root, self._name)
            self._note_aliases()
            self.arrivals.stop()  # positions are others now
            if self.owed is not None:
                self.owed.done = frozenset()
                self.owed.watched, self.owed.versions = False, None
        return self.view

    def watch_backward(self) -> None:
        """The root's forward begins in a saved step: what changes weights, and which gradient comes when."""
        owed = self.owed
        if owed is None or owed.watched:
            return
        owed.watched = True
        parameters = self._parameters()
        if parameters is None:
            return
        if not owed.weights_done:
            owed.versions = versions_of(parameters)
        if owed.asked.gradients:
            positions = awaited(self.view, owed.plan, parameters)
            self.arrivals.start(self.view.in_backward(parameters), positions, late=self.view.late)
            if self.view.late:
                self.due_after_forward = True

    def end_forward(self) -> None:
        """The root's forward has ended."""
        self.due_after_forward = False
        if self.owed is not None and self.view.late:
            self._watch_again(self.owed)
        if self._weights_due is None:
            return
        (stamp, plan), self._weights_due = self._weights_due, None
        parameters = self._parameters()
        if parameters is not None:
            self._note_frozen(list(map(_REQUIRES_GRAD, parameters)))
            self._take(stamp, plan, parameters, select(self.view, plan, list(range(len(parameters))), []))
            if self.owed is not None and self.owed.stamp == stamp:
                self.owed.weights_done = True

    def before_step(self, optimizer: Optimizer, *, closure: bool) -> None:
        """An optimizer is about to step."""
        self.inside_step = closure
        if self.owed is not None:
            self._pay(self.owed, optimizer)
        if closure:
            self.updates.expect_evaluation(optimizer)

    def after_step(self, optimizer: Optimizer) -> bool:
        """An optimizer has stepped. Whether it is one of the model's."""
        self.inside_step = False
        if self.owed is not None and self.owed.inside_step:
            self._pay(self.owed, optimizer)
        if self.updates.pending:
            self.updates.after(optimizer)
        return self._optimizers.find(optimizer) is not None

    def before_forward(self) -> None:
        """A forward begins while a step is owed: accumulation, a step that was skipped, or no optimizer."""
        owed, parameters = self.owed, self._parameters()
        if owed is None or self.inside_step:
            return
        if torch.is_grad_enabled():  # else this is an evaluation before the backward
            self.backward.detach()
        if (
            parameters is not None
            and not owed.done
            and not self._skipped(owed, parameters)
            and any(parameter.grad is not None for parameter in parameters)
            and not self.arrivals.none_came(parameters)
        ):
            if not self._optimizers.any_alive:
                self._optimizers.search(parameters)
            if self._optimizers.any_alive:
                return  # accumulation: the optimizer pays later
            self._warn(
                f"no optimizer stepped for {self.view.root_name}: gradients are read when the next forward "
                "starts; call register_optimizer() or hook.step() if that is not when they are final"
            )
        self.finish()

    def finish(self) -> None:
        """Captures what is owed with what there is now."""
        owed, self.owed = self.owed, None
        self.backward.detach()
        parameters = self._parameters()
        if owed is None or parameters is None:
            self.arrivals.stop()
            return
        if owed.versions != versions_of(parameters):
            self._look_for_changes(owed, parameters)
        rest = [position for position in range(len(parameters)) if position not in owed.done]
        weights: list[int] = [] if owed.weights_done else rest
        gradients = [position for position in rest if parameters[position].requires_grad]
        scales, optimizers = _NOTHING, [optimizer for _, optimizer in self._optimizers.alive()]
        if owed.scalers:
            scales = self.scalers.left_scaled(owed.scalers, optimizers, parameters, gradients, self._say)
            gradients = [position for position in gradients if position in scales]
        selection = select(self.view, owed.plan, weights, gradients)
        skipped = [
            rows
            for scaler, known, optimizer in self._skipped(owed, parameters)
            if self._numbers.is_first(optimizer, owed.stamp, "scale")
            for rows in scaler.rows(optimizer, known.prefix, owed.plan)
        ]
        came = not self.arrivals.none_came(parameters)
        self._take(owed.stamp, owed.plan, parameters, selection, scales, skipped, came=came)
        self.arrivals.stop()
        if not (owed.done or owed.scalers):
            self.scalers.look(again=True)

    def register(self, optimizer: Optimizer) -> bool:
        """Makes an optimizer known before its first step. False when it owns nothing of the model."""
        return self._optimizers.meet(optimizer, self._parameters() or []) is not None

    def switch_off(self) -> None:
        """Captures nothing from now on; still tells names and which optimizers are the model's."""
        self._off = True
        self.owed = self._weights_due = None
        self.due_after_forward = False
        self.arrivals.stop()
        self.backward.switch_off()
        self.updates.switch_off()

    # Private ----------------------------------------------------------------------------------------------

    def _owe(self, stamp: Stamp, plan: Plan, wanted: Asked, *, weights_done: bool) -> None:
        owed = self.owed = Owed(stamp, plan, wanted, self.inside_step, weights_done)
        if self.backward.attached:
            self.backward.detach()
        owed.scalers = self.scalers.records()
        if wanted.series or owed.scalers:  # then it matters whose a parameter is, from the first step on
            view, parameters = self.current_view(), self._parameters() or []
            self._optimizers.search_owners(parameters)
            self.backward.attach(stamp, plan, view, parameters)
            if self.inside_step:
                self.updates.evaluated(owed, view, parameters)

    def _watch_again(self, owed: Owed) -> None:
        """FSDP2 has made its whole parameters in this forward, which get the gradients."""
        owed.watched = False
        self.watch_backward()
        if owed.asked.series:
            self.backward.detach()
            self.backward.attach(owed.stamp, owed.plan, self.view, self._parameters() or [])

    def _parameters(self) -> list[nn.Parameter] | None:
        """The model's parameters, in the order of the view's. None: the model is gone."""
        # The older FullyShardedDataParallel takes its parameters off the modules during forward.
        found = None if self.view.flat else self.view.held_parameters()
        if found is None and self._root() is not None:
            found = self.current_view().held_parameters()
        return found

    def _note_aliases(self) -> None:
        self._remarks.say("aliases", self.view.aliases)

    def _pay(self, owed: Owed, optimizer: Optimizer) -> None:
        parameters = self._parameters()
        if parameters is None:
            self.owed = None
            return
        known = self._optimizers.meet(optimizer, parameters)
        if known is None:
            return
        if owed.versions != versions_of(parameters):
            self._look_for_changes(owed, parameters)
        memo = known.memo
        payment = payment_of(owed, self.view, self._optimizers, known, optimizer, parameters)
        if known.memo is not memo:
            self._note_frozen(list(map(_REQUIRES_GRAD, parameters)))
        divisor, extra = self.scalers.at_step(optimizer, known, owed.plan)
        if extra and not self._numbers.is_first(optimizer, owed.stamp, "scale"):
            extra = []
        if owed.asked.state or owed.asked.numbers:
            extra = self._optimizer_values(owed, known, optimizer, payment, parameters) + extra
        scales = _NOTHING if divisor is None else dict.fromkeys(payment.positions, divisor)
        self._take(owed.stamp, owed.plan, parameters, payment.selection, scales, extra)
        if owed.asked.series:
            self.updates.prepare(owed, self.view, optimizer, parameters)
        done = owed.done | payment.paid if owed.done else payment.paid
        if len(done) < len(parameters):
            owed.done = done
            owed.stepped.append(known)
            return
        self.owed = None
        self.arrivals.stop()
        if self.backward.attached:
            self.backward.paid()

    def _look_for_changes(self, owed: Owed, parameters: list[nn.Parameter]) -> None:
        """Weights that something has changed since the forward began may not be those that it saw."""
        before, now = owed.versions, versions_of(parameters)
        if before is None or now is None or owed.weights_done:
            return
        pairs = enumerate(zip(before, now, strict=True))
        changed = {place % len(parameters) for place, (was, has) in pairs if was != has}
        if not owed.done.issuperset(changed):
            owed.weights_done = self._weights_first = True
            self._say(_CHANGED)

    def _skipped(
        self, owed: Owed, parameters: list[nn.Parameter]
    ) -> list[tuple[ScaleRecord, Known, Optimizer]]:
        """The optimizers that a gradient scaler did not let step, and the scaler."""
        if owed.scalers and not self._optimizers.any_alive:
            self._optimizers.search(parameters)
        return [
            (scaler, known, optimizer)
            for scaler in owed.scalers
            for known, optimizer in self._optimizers.alive()
            if known not in owed.stepped and scaler.skipped(optimizer)
        ]

    def _optimizer_values(
        self, owed: Owed, known: Known, optimizer: Optimizer, payment: Payment, parameters: list[nn.Parameter]
    ) -> list[Rows]:
        """Its state and settings, where the plan wants them."""
        found: list[Rows] = []
        plan = owed.plan
        if owed.asked.state:
            paid = list(map(parameters.__getitem__, payment.positions))
            found.append(state_values(optimizer, known.prefix, plan, payment.names, paid))
        if owed.asked.numbers and self._numbers.is_first(optimizer, owed.stamp, "group"):
            found.append(hyperparameter_values(optimizer, known.prefix, plan))
        return found

    def _note_frozen(self, trainable: list[bool]) -> None:
        pairs = zip(self.view.parameters, trainable, strict=True)
        self._remarks.say("frozen", [parameter.name for parameter, trains in pairs if not trains])

    def _take(
        self,
        stamp: Stamp,
        plan: Plan,
        parameters: list[nn.Parameter],
        selection: Selection,
        scales: Mapping[int, Any] = _NOTHING,
        extra: Iterable[Rows] = (),
        came: bool = True,
    ) -> None:
        """The one native call. scales: what gradients are multiplied by. came: else they are old ones."""
        if self.arrivals.order:
            selection = in_order(self.view, plan, selection, self.arrivals.sorted(selection.gradients))
        at = parameters.__getitem__
        tensors: list[Any] = list(map(at, selection.weights))
        own = list(map(at, selection.gradients))
        gradients: list[Any] = list(map(_GRADIENT, own)) if came else [None] * len(own)
        if scales:
            gradients = unscaled(gradients, map(scales.get, selection.gradients))
        if not _DENSE.issuperset(map(getattr, gradients, _LAYOUT, _NONE)):
            gradients = in_place(gradients, own)
            extra = [*extra, *sparse_rows(plan, self.view, selection.gradients, gradients)]
        tensors += gradients
        batch = selection.batch
        for values, more in extra:
            tensors += values
            batch = batch.followed_by(more)
        if tensors:
            self._recorder.capture(tensors, batch, stamp)
