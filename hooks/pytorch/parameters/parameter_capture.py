"""ParameterCapture: capture of weights, gradients and optimizer state of one root module.

Weights are captured when the root's first forward of a saved step begins, so they are the weights that the
forward uses. A saved training step then stays *pending* until the next step begins. When an optimizer is
about to step, the gradients of its parameters are captured, because they are final (accumulated, unscaled,
clipped). A gradient belongs to the step in which its optimizer steps, even if the forward ran in an earlier
step.

    several optimizers      each captures the parameters that it holds
    closure (LBFGS)         one row per evaluation, when the closure returns: call 0, 1, ...
    no optimizer known      the gradient after the last backward of the step (gradient_order.py)
    no forward in the step  weights just before the first optimizer's step
    no gradient             a row "absent", with the reason (Absent); not zero, not an error
    frozen parameter        no gradient row; listed under "frozen" in collections.json
    held by no optimizer    no row without a gradient; listed under "not_owned"
    eval, no_grad           weights, no gradients
    fused step with a gradient scaler   gradients are divided by the scale, which is recorded next to them

Optimizer state is captured before the optimizer's step.

Threads: the training thread, or the autograd thread that runs an optimizer inside backward(); one at a time.
Keeps no model or parameter alive; if no optimizer is known, copies of gradients are kept until the step ends.
"""

from __future__ import annotations

from operator import attrgetter

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from tdcore.hooks.clock import StepId
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.parameters.gradient_capture import GradientCapture
from tdcore.hooks.pytorch.parameters.pending_step import (
    PendingStep,
    kinds_of,
)
from tdcore.hooks.pytorch.parameters.selection import select

_GRADIENT, _REQUIRES_GRAD = attrgetter("grad"), attrgetter("requires_grad")
__all__ = ["ParameterCapture"]

_LAZY = frozenset({UninitializedParameter})


class ParameterCapture(GradientCapture):
    """Capture of one model's parameters.

    Args:
        notes: Notes for collections.json.
        warn: Logs a message once.
        fault: BaseHook._fault, for the opt-in series (opt_in_series.py), which fail separately.
    """

    def begin_training(self, step_id: StepId, plan: Plan, inside: Optimizer | None) -> None:
        """Begin a saved training step. inside: The optimizer whose closure is running, if any."""
        if self.pending is not None:
            self.finish(accumulated=True)
        kinds = kinds_of(plan)
        self.current_view()
        if self._off or not kinds.anything:
            return
        pending = self.pending = PendingStep(step_id, plan, kinds)
        view, parameters = self.view, self.held()
        if parameters is None:
            self.pending = None
            return
        pending.scalers = self.scalers.records()
        pending.closure = inside is not None
        self.ownership.look(view, parameters)
        if kinds.gradients:
            self._watch(pending, parameters)
        if kinds.series or pending.scalers:
            self.backward.attach(step_id, plan, view, parameters)
            if inside is not None:
                self.updates.prepare(step_id, plan, view, inside, parameters)

    def begin_forward(self, step_id: StepId, plan: Plan, *, trains: bool) -> None:
        """Handle the root's first forward of a saved step. trains: Whether the step is a training step."""
        pending = self.pending
        if pending is not None and trains:
            pending.ran = True
            if pending.weights_done:
                return
            pending.weights_done = True
        kinds = pending.kinds if pending is not None and pending.plan is plan else kinds_of(plan)
        if self._off or not (kinds.weights or trains):
            return
        parameters = self.held()
        if parameters is None:
            return
        if trains:
            self.ownership.note_frozen(self.view, list(map(_REQUIRES_GRAD, parameters)))
        if kinds.weights:
            if self.view.flat or not _LAZY.isdisjoint(map(type, parameters)):
                self._weights_due = step_id, plan
                self.due_after_forward = True
            else:
                self._take_weights(step_id, plan, parameters)
        if self.view.late:
            self.due_after_forward = True

    def end_forward(self) -> None:
        """Handle the end of the root's forward."""
        self.due_after_forward = False
        pending = self.pending
        if pending is not None and self.view.late:
            self._watch_again(pending)
        if self._weights_due is None:
            return
        (step_id, plan), self._weights_due = self._weights_due, None
        self.current_view()
        parameters = self.held()
        if parameters is not None:
            self._take_weights(step_id, plan, parameters)

    def before_closure(self, optimizer: Optimizer) -> None:
        """Handle the start of an optimizer's step with a closure."""
        pending, parameters = self.pending, self.held()
        if pending is not None:
            pending.closure = True
        if pending is not None and pending.kinds.series and parameters is not None:
            self.updates.prepare(pending.step_id, pending.plan, self.view, optimizer, parameters)

    def after_step(self, optimizer: Optimizer) -> None:
        """Handle the end of an optimizer's step."""
        pending = self.pending
        if pending is not None:
            known = self.optimizers.find(optimizer)
            if known is None or known.index not in pending.captures:
                self.before_step(optimizer)  # its step began before the hook was attached
            if pending.closure and self._is_captured(pending, self.held() or []):
                self._captured(closure=True)
        if self.updates.pending:
            self.updates.after(optimizer)

    @property
    def is_whole(self) -> bool:
        """Whether the pending step is complete."""
        pending, parameters = self.pending, self.held()
        if pending is None or parameters is None:
            return True
        return self._is_captured(pending, parameters) or not (pending.ran or self.order.order)

    @property
    def accumulates(self) -> bool:
        """Whether the gradients of the pending step wait for an optimizer."""
        return self.optimizers.any_alive and bool(self.order.order)

    def finish(self, *, accumulated: bool = False) -> None:
        """End the training step: capture gradients that no optimizer used.

        accumulated: Whether these gradients belong to a later step instead.
        """
        pending, self.pending = self.pending, None
        self.backward.detach()
        self.updates.pending.clear()
        parameters = self.held()
        if pending is not None and parameters is not None and pending.kinds.series and pending.captures:
            alive = [optimizer for _, optimizer in self.optimizers.alive()]
            self.updates.end_step(pending.plan, self.view, alive, parameters)
        if pending is not None and parameters is not None:
            self._capture_rest(pending, parameters, accumulated=accumulated)
        elif pending is not None:
            self._capture_copies(pending)
        self.order.stop()
        self.ownership.forget_backward()

    def register(self, optimizer: Optimizer) -> bool:
        """Add an optimizer before its first step. Return False if it holds no parameter of the model."""
        return self.optimizers.find_or_add(optimizer, self.held() or []) is not None

    def switch_off(self) -> None:
        """Stop the capture. Names and the optimizers of the model are still known."""
        self._off = True
        self.pending = self._weights_due = None
        self.due_after_forward = False
        self.order.stop()
        self.backward.switch_off()
        self.updates.switch_off()

    def _watch_again(self, pending: PendingStep) -> None:
        """Attach hooks to the unsharded parameters that FSDP2 has created in this forward."""
        parameters = self.held() or []
        if pending.kinds.gradients:
            self._watch(pending, parameters)
        if pending.kinds.series:
            self.backward.detach()
            self.backward.attach(pending.step_id, pending.plan, self.view, parameters)

    def _take_weights(self, step_id: StepId, plan: Plan, parameters: list[nn.Parameter]) -> None:
        selection = select(self.view, plan, list(range(len(parameters))), [])
        tensors = list(map(parameters.__getitem__, selection.weights))
        if tensors:
            self._recorder.capture(tensors, selection.capture_spec, step_id)
