"""GradientCapture: capture of one root's gradients and optimizer state.

When an optimizer is about to step, the gradients of its parameters are captured, before the optimizer changes
them. Gradients that no optimizer has used are captured when the training step ends, if they still exist;
otherwise a row has the reason (Absent). Threads: the training thread, or the autograd thread that runs an
optimizer inside backward(); one at a time. Keeps no model or parameter alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tdcore.hooks.clock import StepId
from tdcore.hooks.faults import FaultHandler
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.distributed.sharding import match_sharding
from tdcore.hooks.pytorch.model.model_view import ModelView
from tdcore.hooks.pytorch.parameters.backward_gradients import BackwardGradients
from tdcore.hooks.pytorch.parameters.grad_scaler import NamedValues, ScaleRecord, Scalers
from tdcore.hooks.pytorch.parameters.gradient_order import GradientOrder
from tdcore.hooks.pytorch.parameters.optimizers import (
    OptimizerEntry,
    OptimizerNumbering,
    Optimizers,
    hyperparameter_values,
    owned_by,
    state_values,
    unscaled,
)
from tdcore.hooks.pytorch.parameters.ownership import Ownership
from tdcore.hooks.pytorch.parameters.pending_step import (
    Absent,
    PendingStep,
    StepCapture,
    plan_step_capture,
)
from tdcore.hooks.pytorch.parameters.selection import Selection, awaited, in_order, select
from tdcore.hooks.pytorch.parameters.sparse import sparse_rows
from tdcore.hooks.pytorch.parameters.weight_updates import Updates
from tdcore.hooks.recorder import Recorder
from tdcore.hooks.run_notes import ModelNotes, note_once

__all__ = ["GradientCapture"]

_NOTHING: Mapping[int, Any] = {}
_GRADIENT, _REQUIRES_GRAD = attrgetter("grad"), attrgetter("requires_grad")
_FIRST, _SECOND = itemgetter(0), itemgetter(1)
_DENSE = {torch.strided}
_LAYOUT, _NONE = repeat("layout"), repeat(None)


class GradientCapture:
    """The part of ParameterCapture that captures gradients. Arguments: see ParameterCapture."""

    def __init__(
        self,
        root: nn.Module,
        recorder: Recorder,
        notes: dict[str, Any],
        warn: Callable[[str], None],
        fault: FaultHandler,
        *,
        name: str | None = None,
        numbering: OptimizerNumbering,
        scalers: Scalers,
    ) -> None:
        self.view = ModelView(root, name)
        self._name = name
        self.pending: PendingStep | None = None
        self.scalers = scalers  # scalers of the process, shared by all roots
        note = self._note_once = note_once(notes, warn)
        self.updates = Updates(recorder, fault, note)
        self.backward = BackwardGradients(recorder, scalers, fault, note)
        self._root = weakref.ref(root)
        self._recorder = recorder
        self._model_notes = ModelNotes(notes)
        self._off = False
        self.due_after_forward = False  # end_forward() must be called
        self.steps_again = False  # an optimizer has stepped twice in a training step
        # Weights to capture when the root's forward ends.
        self._weights_due: tuple[StepId, Plan] | None = None
        self._numbering = numbering
        self.optimizers = Optimizers(numbering)
        self.order = GradientOrder(fault)
        self.order.ended = weakref.WeakMethod(self._backward_ended)
        self.ownership = Ownership(self.optimizers, self._model_notes, note)
        self._note_aliases()

    def held(self) -> list[nn.Parameter] | None:
        """The model's parameters, in the order of the view; None if the model was deleted."""
        # The older FullyShardedDataParallel removes its parameters from the modules during forward.
        found = None if self.view.flat else self.view.held_parameters()
        if found is None and self._root() is not None:
            found = self.current_view().held_parameters()
        return found

    def current_view(self) -> ModelView:
        """The names of the model's current tensors. The structure is read again if it has changed."""
        root = self._root()
        if root is not None and not self.view.matches(root):
            self.view = ModelView(root, self._name)
            self._note_aliases()
            self.order.stop()  # the positions have changed
            pending = self.pending
            if pending is not None:
                pending.done = frozenset()
                pending.watched = False
                self.ownership.forget_backward()
                parameters = self.held()
                if parameters is not None and pending.kinds.gradients:
                    self._watch(pending, parameters)
        return self.view

    def _watch(self, pending: PendingStep, parameters: list[nn.Parameter]) -> None:
        """Record the order of gradients from the next backward on."""
        pending.watched = True
        positions = awaited(self.view, pending.plan, parameters)
        self.order.start(self.view.in_backward(parameters), positions, late=self.view.late)

    def _backward_ended(self, came: list[int]) -> None:
        """Handle the end of a backward. came: positions of the parameters that it reached."""
        parameters = self.held()
        if self.pending is not None and parameters is not None:
            self.ownership.backward_ended(came, parameters)

    def _note_aliases(self) -> None:
        self._model_notes.set("aliases", self.view.aliases)

    def _is_captured(self, pending: PendingStep, parameters: list[nn.Parameter]) -> bool:
        """Whether the gradients of all parameters that train, or whose optimizer steps next, are captured."""
        if len(pending.done) == len(parameters):
            return True
        rest = [one for position, one in enumerate(parameters) if position not in pending.done]
        if any(map(_REQUIRES_GRAD, rest)):
            return False
        # Lightning's toggle_optimizer() freezes the parameters of the optimizers that step next.
        next_ones = [one for known, one in self.optimizers.alive() if known.index not in pending.captures]
        awaited = {id(one) for optimizer in next_ones for one in owned_by(optimizer)}
        return awaited.isdisjoint(map(id, rest))

    def _captured(self, *, closure: bool = False) -> None:
        """Handle that all optimizers of the model have stepped."""
        pending = self.pending
        if pending is None or self.steps_again or (pending.closure and not closure):
            return
        self.pending = None
        self.order.stop()
        if self.ownership.copies or self.ownership.versions:
            self.ownership.forget_backward()
        if self.backward.attached:
            self.backward.step_captured()

    def before_step(self, optimizer: Optimizer) -> None:
        """Capture gradients that the optimizer is about to use, or uses in a call of its closure."""
        pending = self.pending
        if pending is None:
            return
        parameters = self.held()
        if parameters is None:
            self.pending = None
            return
        known = self.optimizers.find_or_add(optimizer, parameters)
        if known is None:
            return
        came = len(self.order.order)
        capture = plan_step_capture(pending, self.view, known, optimizer, parameters)
        call, selection = 0, capture.selection
        again = pending.captures.get(known.index, 0)
        if pending.done and not pending.done.isdisjoint(capture.owned):
            if came == pending.came:
                selection = self._without_done(pending, capture)  # no new gradients since
            else:
                call = again or 1 + pending.calls
        if again and not selection.gradients:
            return
        if call == 0 and self.ownership.any_frozen:
            trainable = [parameters[position].requires_grad for position in capture.positions]
            self.ownership.note_trainable(self.view, capture.positions, trainable)
        divisor, extra = self.scalers.at_step(optimizer, known, pending.plan)
        if again or (extra and not self._numbering.is_first(optimizer, pending.step_id, "scale")):
            extra = []
        if not again and (pending.kinds.state or pending.kinds.numbers):
            extra = self._optimizer_values(pending, known, optimizer, capture, parameters) + extra
        scales = _NOTHING if divisor is None else dict.fromkeys(capture.positions, divisor)
        self._take(pending, parameters, selection, scales, extra, call=call)
        pending.weights_done = True
        if pending.kinds.series and not again and id(optimizer) not in self.updates.pending:
            self.updates.prepare(pending.step_id, pending.plan, self.view, optimizer, parameters)
        pending.captures[known.index] = again + 1
        pending.came, pending.calls = came, max(call, pending.calls)
        pending.done = pending.done | capture.owned if pending.done else capture.owned
        if not again:
            pending.stepped.append(known)
        if self._is_captured(pending, parameters):
            self._captured()

    def _without_done(self, pending: PendingStep, capture: StepCapture) -> Selection:
        """Selection of an optimizer, without parameters of a shared optimizer that are already captured."""
        gradients = [one for one in capture.selection.gradients if one not in pending.done]
        return select(self.view, pending.plan, capture.selection.weights, gradients)

    def _capture_rest(
        self, pending: PendingStep, parameters: list[nn.Parameter], *, accumulated: bool
    ) -> None:
        """Capture gradients that no optimizer used in the step, or the reasons why they are absent."""
        if len(pending.done) == len(parameters) or not pending.kinds.gradients:
            return
        came = frozenset(self.order.order)
        if not (pending.ran or came):
            return
        alive = self.optimizers.alive()
        held = {id(one) for _, optimizer in alive for one in owned_by(optimizer)}
        rest = [
            position
            for position, one in enumerate(parameters)
            if position not in pending.done
            and one.requires_grad
            and (position in came or id(one) in held or not alive)
        ]
        if not rest:
            return
        skipped = self._skipped(pending, parameters)
        scales = _NOTHING
        if pending.scalers and not accumulated:
            optimizers = [optimizer for _, optimizer in alive]
            scales = self.scalers.left_scaled(pending.scalers, optimizers, parameters, rest, self._note_once)
            rest = [position for position in rest if position in scales]
        selection = select(self.view, pending.plan, [], rest)
        if self.order.order:
            selection = in_order(self.view, pending.plan, selection, self.order.sorted(selection.gradients))
        left = [
            (None, Absent.ACCUMULATED)
            if accumulated
            else self._left(
                position, parameters[position], id(parameters[position]) in held, bool(skipped), came
            )
            for position in selection.gradients
        ]
        extra = [
            rows
            for scaler, known, optimizer in skipped
            if self._numbering.is_first(optimizer, pending.step_id, "scale")
            for rows in scaler.rows(optimizer, known.prefix, pending.plan)
        ]
        self._take(pending, parameters, selection, scales, extra, left=left)
        if not (pending.done or pending.scalers):
            self.scalers.look(again=True)

    def _capture_copies(self, pending: PendingStep) -> None:
        """Capture the copied gradients of a model that was deleted."""
        copies = self.ownership.copies
        selection = select(self.view, pending.plan, [], sorted(copies.keys() - pending.done))
        if selection.gradients:
            values = list(map(copies.__getitem__, selection.gradients))
            self._recorder.capture(values, selection.capture_spec, pending.step_id)

    def _left(
        self, position: int, parameter: nn.Parameter, owned: bool, skipped: bool, came: frozenset[int]
    ) -> tuple[Any, Absent]:
        """Return the gradient, or its copy, at the end of the step; or None and the reason."""
        gradient, copy = parameter.grad, self.ownership.copies.get(position)
        if copy is not None:
            return copy, Absent.NONE
        if not self.order.active:  # it is unknown whether a backward reached the parameter
            return gradient, Absent.UNKNOWN
        if position not in came:
            return None, Absent.NOT_STEPPED if owned and not skipped else Absent.NO_BACKWARD
        if gradient is None or self.ownership.was_cleared(position, gradient):
            return None, Absent.SCALER_SKIPPED if skipped else Absent.CLEARED
        return gradient, Absent.NONE

    def _skipped(
        self, pending: PendingStep, parameters: list[nn.Parameter]
    ) -> list[tuple[ScaleRecord, OptimizerEntry, Optimizer]]:
        """The optimizers whose step a gradient scaler skipped, each with the scaler's record."""
        if pending.scalers and not self.optimizers.any_alive:
            self.optimizers.search(parameters)
        return [
            (scaler, known, optimizer)
            for scaler in pending.scalers
            for known, optimizer in self.optimizers.alive()
            if known not in pending.stepped and scaler.skipped(optimizer)
        ]

    def _optimizer_values(
        self,
        pending: PendingStep,
        known: OptimizerEntry,
        optimizer: Optimizer,
        capture: StepCapture,
        parameters: list[nn.Parameter],
    ) -> list[NamedValues]:
        """Return state and hyperparameters of an optimizer that the plan selects."""
        found: list[NamedValues] = []
        plan = pending.plan
        if pending.kinds.state:
            held = list(map(parameters.__getitem__, capture.positions))
            found.append(state_values(optimizer, known.prefix, plan, capture.names, held))
        if pending.kinds.numbers and self._numbering.is_first(optimizer, pending.step_id, "group"):
            found.append(hyperparameter_values(optimizer, known.prefix, plan))
        return found

    def _take(
        self,
        pending: PendingStep,
        parameters: list[nn.Parameter],
        selection: Selection,
        scales: Mapping[int, Any] = _NOTHING,
        extra: Iterable[NamedValues] = (),
        *,
        call: int = 0,
        left: list[tuple[Any, Absent]] | None = None,
    ) -> None:
        """Capture a selection in one native call.

        Args:
            pending: The step.
            parameters: The model's parameters.
            selection: Positions and names of the gradients.
            scales: Factors of scaled gradients, by position.
            extra: Further rows.
            call: Number of earlier captures of these names in the step.
            left: The gradients, or the reasons why they are absent, in the order of the selection; None: the
                gradients of the parameters.
        """
        plan = pending.plan
        if left is None and self.order.order:
            selection = in_order(self.view, plan, selection, self.order.sorted(selection.gradients))
        at = parameters.__getitem__
        tensors: list[Any] = list(map(at, selection.weights))
        own = list(map(at, selection.gradients))
        gradients: list[Any] = list(map(_GRADIENT, own) if left is None else map(_FIRST, left))
        capture_spec = selection.capture_spec
        if type(None) in map(type, gradients):
            reasons = list(map(_SECOND, left)) if left is not None else self._reasons(selection.gradients)
            capture_spec = capture_spec.with_reasons([*repeat(0, len(tensors)), *reasons])
        if scales:
            gradients = unscaled(gradients, map(scales.get, selection.gradients))
        if not _DENSE.issuperset(map(getattr, gradients, _LAYOUT, _NONE)):
            gradients = match_sharding(gradients, own)
            extra = [*extra, *sparse_rows(plan, self.view, selection.gradients, gradients)]
        tensors += gradients
        for found, more in extra:
            tensors += found
            capture_spec = capture_spec.concat(more)
        if tensors:
            self._recorder.capture(tensors, capture_spec, pending.step_id, call)

    def _reasons(self, positions: list[int]) -> list[Absent]:
        """Reasons why parameters of a stepping optimizer have no gradient."""
        if not self.order.active:
            return [Absent.UNKNOWN] * len(positions)
        came = frozenset(self.order.order)
        return [Absent.CLEARED if position in came else Absent.NO_BACKWARD for position in positions]
