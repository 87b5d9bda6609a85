"""TrainingDriver: the step to which a forward belongs. docs/pytorch.md begins with the rule.

Threads: the training thread. Replicas may run forward in other threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter_ns

import torch
from torch import nn

from tdcore.hooks.pytorch.compile.tracing import (
    dispatch_modes,
    graph_task,
    is_traced,
    symbolic,
    tracing_state,
)
from tdcore.hooks.pytorch.forward.entries import running_call
from tdcore.hooks.pytorch.steps import graphs
from tdcore.hooks.pytorch.steps.driver_state import EVAL, NONE_OPEN, PREDICT, TRAIN, WITH_GRADIENTS
from tdcore.hooks.pytorch.steps.gpu_times import cuda_events
from tdcore.hooks.pytorch.steps.optimizer_steps import OptimizerSteps
from tdcore.hooks.pytorch.steps.phases import look_for_phases, time_gpu
from tdcore.hooks.pytorch.steps.root import Root
from tdcore.hooks.pytorch.steps.shortfall import open_step, possible, saved_steps_without_update
from tdcore.hooks.run_notes import note_once
from tdcore.hooks.step_timer import FORWARD
from tdcore.modes import ModeKeys

__all__ = ["TrainingDriver"]


class TrainingDriver(OptimizerSteps):
    """The part of the PyTorch hook that PyTorch's forward hooks call."""

    def _on_forward(
        self,
        root: Root,
        module: nn.Module,
        args: tuple[object, ...] | None,
        kwargs: Mapping[str, object] | None,
    ) -> None:
        """Handle the start of a forward of the root.

        Args:
            root: The root.
            module: The root, the module inside its wrapper, or an entry (entries.py).
            args: Positional arguments; None for an entry.
            kwargs: Keyword arguments; None for an entry, or if compiled code reports the forward.
        """
        if self._off or (
            (dispatch_modes() or tracing_state() is not None or symbolic._is_fx_tracing_flag)
            and is_traced(args, kwargs)
        ):
            return
        if module is not root.reference():
            if "_is_replica" in module.__dict__:
                self._replicas.on_forward(self, root, module)
                return
            if args is not None:
                expected, root.inner_expected = root.inner_expected, False
                if expected or not root.is_inner(module):
                    return  # part of the wrapper's forward, or a copy of the model
            elif root.inner_expected:
                return  # an entry, before the module inside is called
        elif root.has_inner:
            root.inner_expected = True
        if graph_task is not None and graph_task() != -1:
            return  # activation checkpointing recomputes the root
        if self._control_changed():
            self._check_control()
        start = perf_counter_ns()
        try:
            if root.follows and module.training and torch.is_grad_enabled():
                trains = True
                if not self._updates:
                    self._join_training(TRAIN)
                    self._timer.enter(FORWARD)
                elif self._busy:
                    self._start_training(TRAIN)
                else:
                    self._updates = set()
                    if self._begin_step(TRAIN) is not None:
                        self._start_saving(root)
                root.trained_in = self._updates
            else:
                trains = self._find_step(root, module, args is None)
                self._timer.enter(FORWARD)
        except Exception as error:
            self._fault("steps", error)
            return
        plan = self._clock.plan
        # Compiled code calls tdcore outside of its graphs (operator.py).
        if (
            plan is None
            and self._has_graphs
            and (args is None or kwargs is not None)
            and graphs.records_graph()
        ):
            plan = self._save_into_graph(root, trains=trains)
        if plan is not None:
            spent = self._recorder.spent_ns
            root.join(self, module, plan, args, kwargs, trains=trains)
            self._may_be_attached = True
            # The time that module hooks have added is already included.
            self._recorder.spent_ns = spent + perf_counter_ns() - max(start, self._search_ended)

    def _find_step(self, root: Root, module: nn.Module, entry: bool = False) -> bool:
        """Begin or continue the step of a forward. Return whether it is a training step."""
        if not root.searched:
            self._search_all()
            self._guarded("time of the GPU", self._time_gpu)
        if module.training and torch.is_grad_enabled() and not root.by_itself:
            if entry:
                root.entries.used = True
            elif not root.entries.used:
                root.by_itself = True
                root.entries.watch()
        if self._by_hand:
            return self._called is None
        mode_set, training = self._mode, module.training
        if self._by_forward:
            return self._step_of_forward(root, module, mode_set or (TRAIN if training else EVAL))
        if mode_set:
            trains = mode_set in WITH_GRADIENTS
        elif torch.is_grad_enabled():
            trains = training or root.trains_in_eval
            if not trains and root.has_no_training_forward:
                root.evaluated_after, self._attentive = root.trained_in, True
        else:
            trains = False
        if trains:
            root.follows = root.by_itself and not mode_set and module is root.reference()
            if self._updates:
                self._start_training(mode_set or TRAIN)
            else:
                self._join_training(mode_set or TRAIN)
            root.trained_in = self._updates
            return True
        self._join_other(root, module, mode_set or (PREDICT if training else EVAL), entry=entry)
        return False

    def _time_gpu(self) -> None:
        """Measure the time of the GPU from this forward on, if the first model is on a CUDA device."""
        first = self._roots[0].reference()
        if first is not None:
            self._timer = time_gpu(self._timer, cuda_events(first), note_once(self._notes, self._warn))

    def _search_all(self) -> None:
        """Search the optimizers of all roots. The time counts before the step begins, which can be later."""
        start = perf_counter_ns()
        for each in self._roots:
            if not each.searched:
                self._search(each)
        self._has_graphs = self._has_graphs or graphs.uses_cuda()
        look_for_phases()
        self._search_ended = perf_counter_ns()
        self._recorder.spent_ns += self._search_ended - start

    def _stop_following(self) -> None:
        """Stop deriving steps or modes from forwards, because the script sets them."""
        for root in self._roots:
            root.follows = False

    def _join_training(self, mode: int) -> None:
        """Add a training forward to the open training step, in which no optimizer has stepped yet."""
        if self._joined_in is not self._updates:
            self._most_joined = max(self._most_joined, self._joined)
            self._joined_in, self._joined = self._updates, 0
        self._joined += 1
        if (self._watched and self._updated_by_hand()) or (self._scaler_states and self._scaler_updated()):
            self._start_training(mode)
        elif self._called is not None:
            self._continue_training()

    def _join_other(self, root: Root, module: nn.Module, mode: int, *, entry: bool) -> None:
        """Add a forward without training to a step of its mode, or begin such a step."""
        called = self._called
        if entry and called is not None and id(root) in called and running_call(root):
            return  # part of the root's own forward
        key = id(module if entry else root)  # a wrapper and the module inside are the same root
        if called is None or mode != self._clock.now.mode or key in called:
            called = self._start_other(mode)
        called.add(key)
        if self._suspended is not None and torch.is_grad_enabled():
            self._other_has_graph = any(one.requires_grad for one in root.parameters.held() or ())

    def _step_of_forward(self, root: Root, module: nn.Module, mode: int) -> bool:
        """Begin a step with the clock "forward", for which every forward of the first root is a step."""
        own = module is root.reference() or root.is_inner(module) or "_is_replica" in module.__dict__
        if own and root is self._roots[0]:
            if mode in WITH_GRADIENTS and torch.is_grad_enabled():
                self._start_training(mode)
            else:
                self._start_other(mode)
        return self._called is None

    # The end ----------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._updates.add(NONE_OPEN)
        self._end_step()
        if self._graphs_armed:
            self._guarded("CUDA graphs", self._collect_graphs)

    def _missing(self) -> Iterator[str]:
        if not self._listens or not self._clock.begun:
            yield from self._without_model()
            return
        if self._shortfalls.none_due:
            steps = sum(self._clock.begun_steps(mode.value) for mode in ModeKeys)
            yield f"no step was saved: save_config selects no step (steps so far: {steps})"
        if any(root.parameters.optimizers.found_count for root in self._roots):
            yield from self._without_update()
        yield from self._shortfalls.of_collections(possible(self._roots, self._notes.get("frozen", ())))

    def _without_model(self) -> Iterator[str]:
        """Yield a message if no model was registered, or no forward was observed."""
        needs = self._shortfalls.needs_a_model
        if needs or not self._names.any:
            what = ", ".join(needs) or "anything"
            names = ", ".join(root.view.root_name for root in self._roots)
            why = f"no forward of {names} was detected" if names else "no model was registered"
            yield f"{what}: {why}; call register_module(model) before the training"

    def _without_update(self) -> Iterator[str]:
        """Yield a message if an optimizer of the models never steps, or has stopped stepping."""
        if self._by_hand or self._by_forward:
            last = max(self._saved_updates.values(), default=0)
            yield from saved_steps_without_update(self._saved_steps, last)
        elif self._joined_in is self._updates and self._updates <= {NONE_OPEN}:
            step = self._clock.last if self._suspended is None else self._suspended.step_id.step
            stepped = sum(map(self._clock.begun_steps, WITH_GRADIENTS)) > 1
            yield from open_step(step, self._joined, self._most_joined, stepped=stepped)

    def _detach(self) -> None:
        self._losses.detach()
        self._losses.detach_beneath()
        for root in self._roots:
            root.detach()
        self._stack.close()

    def _switch_off(self, part: str) -> None:
        if part == "steps":
            self._send_collections()  # the last version, with the fault
            self._off = True
        if part in ("activations", "losses"):
            self._losses.switch_off()
        elif part == "steps":
            self._losses.detach()
            self._losses.detach_beneath()
        for root in self._roots:
            root.switch_off(part)
