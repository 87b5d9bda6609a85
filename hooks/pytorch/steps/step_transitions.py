"""StepTransitions: start, suspension, continuation and end of steps. driver.py selects a forward's step.

A training step stays open until the next training step begins, because several optimizers may step one after
the other. Any other forward is a step of its own mode. During this step the open training step is suspended;
the next training forward continues it.

Threads: the training thread.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns

from torch import nn

from tdcore.hooks.clock import StepId, SuspendedStep
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.forward.losses import requires_grad
from tdcore.hooks.pytorch.steps import compiled_steps
from tdcore.hooks.pytorch.steps.driver_state import NONE_OPEN, WITH_GRADIENTS, DriverState
from tdcore.hooks.pytorch.steps.root import Root
from tdcore.hooks.run_notes import note_once

__all__ = ["StepTransitions"]

_SAVED_STEPS = 3  # number of saved steps after which an optimizer without a step in them is reported
_NEVER_SAVED = (
    "{} did not step in the first {} saved training steps, so gradients of its parameters are missing: "
    "networks that train in turn have one step per update, and a save_interval that is a multiple of their "
    "number always saves the same network. Use another save_interval (an odd number for two networks), or "
    "call hook.step() at the start of each round"
)


class StepTransitions(DriverState):
    """The part of the hook that begins and ends steps."""

    def _arm_graphs(self, step_id: StepId) -> None:
        self._graphs_armed = self._graphs.begin(step_id)

    def _collect_graphs(self) -> None:
        self._graphs_armed = False
        self._graphs.end()

    def _save_into_graph(self, root: Root, *, trains: bool) -> Plan:
        """Treat the step as saved, because the forward is recorded into a CUDA graph.

        Its replays call no hooks, so the tensors of all saved collections become a part of the graph.
        """
        plan = self._clock.plan = self._clock.plan_of(self._clock.included)
        self._unmarked = True
        if trains:
            self._start_saving(root)
        else:
            self._may_be_attached = self._busy = True
            if self._losses.modules:
                self._guarded("losses", self._attach_losses, plan)
        return plan

    def _start_training(self, mode: int) -> None:
        """Begin the next training step."""
        if self._may_be_attached:
            self._end_step()
        self._updates = set()
        self._suspended = self._called = None
        signs = self._watched or self._scalers.found
        if signs:
            self._look_for_signs()
        self._busy = self._may_be_attached or bool(signs)
        if self._begin_step(mode) is not None:
            self._start_saving(None)
        elif self._armed and not self._compiled_call:
            self._disarm()

    def _disarm(self) -> None:
        self._armed = False
        for root in self._roots:
            self._guarded("activations", root.disarm)

    def _start_saving(self, begun_by: Root | None) -> None:
        """Prepare a saved training step. begun_by: The root whose forward began the step; None: unknown."""
        self._begun_by = begun_by
        plan, step_id = self._clock.plan, self._clock.now.step_id
        assert plan is not None, "the clock has begun a saved step"
        self._may_be_attached = self._busy = True
        self._saved_steps += 1
        if self._saved_steps == _SAVED_STEPS + 1:
            self._check_turns()
        if self._losses.modules:
            self._guarded("losses", self._attach_losses, plan)
        inside = self._inside() if self._inside is not None else None
        try:
            for root in self._roots:
                root.parameters.begin_training(step_id, plan, inside)
                if root.parameters.pending is not None:
                    self._saves_training = self._attentive = True
        except Exception as error:
            self._fault("parameters", error)

    def _check_turns(self) -> None:
        """Report optimizers that step only between saved steps."""
        if self._saved_updates.keys().isdisjoint(self._ours):
            return
        for identity, known in self._ours.items():
            optimizer = known()
            if optimizer is not None and identity not in self._saved_updates:
                holds = [
                    root.view.root_name for root in self._roots if root.parameters.optimizers.find(optimizer)
                ]
                what = f"the {type(optimizer).__name__} of {', '.join(holds)}"
                note_once(self._notes, self._warn)(_NEVER_SAVED.format(what, _SAVED_STEPS))

    def _start_other(self, mode: int) -> set[int]:
        """Begin a step of another mode (an evaluation, a rollout). An open training step is suspended."""
        if self._called is None and not self._updates and not self._by_forward:
            self._suspended = self._clock.leave()
        if self._may_be_attached:
            self._rest()
        called = self._called = set()
        self._busy, self._other_has_graph = True, False
        plan = self._begin_step(mode)
        suspended = self._suspended
        if plan is None and self._armed and not self._compiled_call:
            self._disarm()
        if self._losses.modules:
            beneath = suspended.plan if suspended is not None else None
            if beneath is not None:
                self._guarded("losses", self._losses.attach_beneath, beneath, self._route_beneath)
            if plan is not None:
                self._guarded("losses", self._attach_losses, plan)
        self._may_be_attached = self._may_be_attached or plan is not None
        return called

    def _continue_training(self) -> None:
        """Continue the open training step at a training forward after steps of other modes."""
        suspended, self._suspended, self._called = self._suspended, None, None
        if suspended is None:
            return
        if self._may_be_attached:
            self._rest()
        self._clock.continue_step(suspended)
        if suspended.plan is not None:
            if self._graphs_armed:
                self._guarded("CUDA graphs", self._collect_graphs)
            if self._has_graphs:
                self._guarded("CUDA graphs", self._arm_graphs, suspended.step_id)
        step, mode, mode_step = suspended.step_id
        self._timer.begin(step, mode, mode_step, self._step_phase, self._recorder.spent_ns)
        if suspended.plan is not None and self._losses.modules:
            self._guarded("losses", self._attach_losses, suspended.plan)

    def _start_by_hand(self, mode: int) -> None:
        if mode in WITH_GRADIENTS:
            self._start_training(mode)
        else:
            if self._may_be_attached:
                self._end_step()
            self._updates, self._attentive = {NONE_OPEN}, True
            self._start_other(mode)
        for root in self._roots:
            if root.by_itself and not root.entries.used:
                root.entries.take_off()
            if root.compiled.root_is_compiled:
                compiled_steps.arm(self, root)

    def _enter_step(self, module: nn.Module) -> None:
        """Attach module hooks in a step that the script begins, whether the root is called or not."""
        plan = self._clock.plan
        for root in self._roots:
            if plan is not None and root.reference() is module:
                root.join(self, module, plan, None, None, trains=self._called is None)
                self._may_be_attached = True

    def _leave_step(self) -> None:
        """Detach module hooks until the next step."""
        if self._may_be_attached:
            for root in self._roots:
                self._guarded("modules without calls", root.forward_ended, False)

    def _rest(self) -> None:
        """Detach the hooks of the step that was the current one."""
        self._guarded("losses", self._losses.detach)
        self._guarded("losses", self._losses.detach_beneath)
        for root in self._roots:
            self._guarded("activations", root.rest)
        if any(root.compiled.root_is_compiled for root in self._roots):
            compiled_steps.arm_losses(self)

    def _end_step(self) -> None:
        """End the training step: capture gradients that no optimizer has used, and remove hooks."""
        self._may_be_attached = False
        self._rest()
        accumulates = self._by_forward and not self._updates
        self._saves_training = False
        self._attentive = bool(self._watched)
        for root in self._roots:
            self._guarded("parameters", root.finish, accumulates)
            if root.parameters.pending is not None:
                self._saves_training = self._may_be_attached = self._attentive = True

    def _last_complete_step(self) -> int:
        if self._suspended is not None:
            return self._suspended.step_id.step - 1
        for root in self._roots:
            pending = root.parameters.pending
            if pending is not None and not root.parameters.is_whole:
                return pending.step_id.step - 1
        return self._graphs.step - 1 if self._graphs_armed else self._clock.last

    def _may_be_saved_next(self) -> bool:
        """Whether the next forward may belong to a saved step."""
        if self._by_hand:
            return self._clock.plan is not None
        return self._saves_losses or self._clock.may_save_next()

    def _end_forward(self, root: Root) -> None:
        """Handle the end of a root's forward."""
        start = perf_counter_ns()
        keep = self._called is None and self._clock.plan is not None
        try:
            root.forward_ended(keep)
        except Exception as error:
            self._fault("modules without calls", error)
        if self._local_shards.async_outputs.pending:
            self._guarded("activations", self._local_shards.end_forward)
        if not self._off and root.parameters.due_after_forward:
            self._guarded("parameters", root.parameters.end_forward)
        if root.compiled.root_is_compiled:
            compiled_steps.arm(self, root)
        self._recorder.spent_ns += perf_counter_ns() - start

    @property
    def _saves_losses(self) -> bool:
        """Whether a loss that is computed now may be in a saved step."""
        suspended = self._suspended
        return self._clock.plan is not None or (suspended is not None and suspended.plan is not None)

    # Losses -----------------------------------------------------------------------------------------------

    def _attach_losses(self, plan: Plan) -> None:
        router = self._route_above if self._suspended is not None else None
        self._losses.attach(plan, compiled_steps.widest(self), router)

    def _belongs_beneath(self, requires_grad: bool) -> SuspendedStep | None:
        """The suspended training step, if a loss belongs to it and not to the current step."""
        return self._suspended if requires_grad and not (self._updates or self._other_has_graph) else None

    def _route_beneath(self, value: object) -> AbstractContextManager[None] | None:
        """Router for losses of the suspended training step, while another step is the current one."""
        step = self._belongs_beneath(requires_grad(value)) if self._suspended is not None else None
        return self._clock.during(step) if step is not None else None

    def _route_above(self, value: object) -> AbstractContextManager[None] | None:
        """Router for losses of the current step, while a training step is suspended."""
        above = self._suspended is None or self._belongs_beneath(requires_grad(value)) is None
        return nullcontext() if above else None
