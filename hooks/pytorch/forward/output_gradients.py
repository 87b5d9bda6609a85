"""Gradients of module outputs, captured in backward when they are computed, if requested.

    output_gradient/conv1_output_0      in the collection "output_gradients"; `call` as for the output

Output gradients are captured in the order of backward, before the gradients of parameters, which are captured
at the optimizer's step. The values are not changed: with a gradient scaler they are scaled. If the gradient
of an output has not been computed when the next step begins, a row "absent" is written. If several backwards
reach one output, only the first gradient is captured. Later gradients are counted in collections.json
("output_gradients_missed").

Modules that activation checkpointing recomputes with use_reentrant=True have no graph in their first forward,
and therefore no row. Modules in code compiled by torch.compile have no row either; collections.json lists
them.

Threads: attach, detach and finish_backward in the training thread; gradients are captured in threads of
autograd. Keeps no tensor alive.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tdcore.format.layout import TensorKind
from tdcore.hooks.clock import StepId
from tdcore.hooks.faults import FaultHandler
from tdcore.hooks.plan import CaptureSpec, Plan, TensorSpec
from tdcore.hooks.pytorch.compile.code_variants import compile_in_use
from tdcore.hooks.pytorch.compile.operator import is_compiling, never_trace, skip_frames
from tdcore.hooks.pytorch.compile.tracing import graph_task
from tdcore.hooks.pytorch.model.flatten import flatten_tensors
from tdcore.hooks.pytorch.model.model_view import ModelView, Module
from tdcore.hooks.pytorch.model.pickling import InertInCopies
from tdcore.hooks.recorder import Recorder

__all__ = ["OutputGradients"]

_KIND = TensorKind.OUTPUT_GRADIENT
_COMPILED = "torch.compile is in use: modules that run in compiled code have no output gradients"


class OutputGradients:
    """Gradients of one model's outputs. fault: BaseHook._fault. notes: the notes for collections.json."""

    def __init__(self, recorder: Recorder, fault: FaultHandler, notes: dict[str, Any]) -> None:
        self.recorder = recorder
        self.fault_ref = fault
        self.off = False
        self._notes = notes
        self._missed: Counter[str] = Counter()
        self._key = RemovableHandle(OrderedDict()).id  # unique among all hooks of the process
        self.attached: list[dict[Any, Any]] = []  # not empty: modules have hooks
        self._leaves: list[RemovableHandle] = []  # hooks on tensors that outlive their graph
        self.awaited: list[GradientHook] = []  # hooks of the running step without a gradient so far

    def attach(self, view: ModelView, plan: Plan, excluded: Collection[str]) -> None:
        """Attach the hooks at the root's forward in a saved step. excluded: modules without hooks."""
        if self.off:
            return
        self.detach()
        if compile_in_use() and "output_gradients" not in self._notes:
            self._notes["output_gradients"] = _COMPILED
        for watch in self._output_hooks(view, plan):
            module: Any = watch.module.module()
            if module is not None and watch.module.name not in excluded:
                with suppress(Exception):  # some modules accept no hooks; hook_attachment.py logs it
                    module._forward_hooks[self._key] = watch
                    self.attached.append(module._forward_hooks)

    def detach(self) -> None:
        """Detach the hooks, when the root's forward has ended or the hook is closed."""
        for hooks in self.attached:
            hooks.pop(self._key, None)
        self.attached.clear()

    def finish_backward(self) -> None:
        """Write rows "absent" for missing gradients when the next step begins."""
        awaited, self.awaited = self.awaited, []
        for handle in self._leaves:
            handle.remove()
        self._leaves.clear()
        if not self.off:
            for one in awaited:
                one.finish_backward()

    @contextmanager
    def not_awaited(self) -> Iterator[None]:
        """Leave gradients of outputs in this context out of finish_backward()."""
        awaited, leaves = self.awaited, self._leaves
        self.awaited, self._leaves = [], []
        try:
            yield
        finally:
            for handle in self._leaves:
                handle.remove()
            self.awaited, self._leaves = awaited, leaves

    def switch_off(self) -> None:
        """Stop the capture."""
        self.off = True
        self.detach()

    def fault(self, error: Exception) -> None:
        """Report an error of tdcore."""
        fault = self.fault_ref()
        if fault is not None:
            fault("output gradients", error)

    def until_next_step(self, handle: RemovableHandle) -> None:
        """Remove a hook when the next step begins, because a tensor without a graph may be kept for long."""
        self._leaves.append(handle)

    def missed(self, name: str) -> None:
        """Count a further backward through an output whose gradient is already captured."""
        self._missed[name] += 1
        self._notes["output_gradients_missed"] = self._notes.get("output_gradients_missed", {}) | {
            name: self._missed[name]
        }

    def _output_hooks(self, view: ModelView, plan: Plan) -> list[OutputHook]:
        """Return the hooks of modules that have, or may have, selected outputs."""
        key = ("output gradients", view.root_name)
        known = plan.cache.get(key)
        if known is None or known[0] is not view:
            known = (view, [OutputHook(self, module, plan) for module in view.modules])
        output_hooks = [watch for watch in known[1] if watch.useful or not watch.called]
        plan.cache[key] = (view, output_hooks)
        return output_hooks


class OutputHook(InertInCopies):
    """Forward hook that registers tensor hooks on a module's outputs. useful: any output was selected."""

    __slots__ = ("_owner", "_plan", "_prefix", "called", "module", "useful")

    def __init__(self, owner: OutputGradients, module: Module, plan: Plan) -> None:
        self.module = module
        self.called = self.useful = False
        self._owner = owner
        self._plan = plan
        self._prefix = f"output_gradient/{module.name}_output_"

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        """Register tensor hooks on the outputs, as a forward hook. Never raises."""
        if is_compiling():
            return
        if graph_task is not None and graph_task() != -1:
            return  # recomputed in backward
        start, owner = perf_counter_ns(), self._owner
        try:
            self.called = True
            call = owner.recorder.now.next_call(self._prefix)
            for end, tensor in flatten_tensors(output):
                name = self._prefix + end
                spec = self._plan.spec(name, _KIND, self.module.origin)
                if spec is not None:
                    self.useful = True
                    if tensor.requires_grad:
                        self._register(tensor, GradientHook(owner, name, spec, call))
        except Exception as error:
            owner.fault(error)
        owner.recorder.spent_ns += perf_counter_ns() - start

    def _register(self, tensor: torch.Tensor, awaited: GradientHook) -> None:
        handle = tensor.register_hook(awaited)
        self._owner.awaited.append(awaited)
        if tensor.grad_fn is None:
            self._owner.until_next_step(handle)


class GradientHook:
    """Tensor hook that captures the gradient of one output, or writes a row "absent" at the step's end."""

    __slots__ = ("_call", "_capture_spec", "_done", "_name", "_owner", "_step_id")

    def __init__(self, owner: OutputGradients, name: str, spec: TensorSpec, call: int) -> None:
        self._done = False
        self._owner = owner
        self._name = name
        self._capture_spec = CaptureSpec([spec])
        self._step_id: StepId = owner.recorder.now.step_id
        self._call = call

    def __call__(self, gradient: torch.Tensor) -> None:
        """Capture the gradient, as a tensor hook. Never raises."""
        start, owner = perf_counter_ns(), self._owner
        try:
            if self._done:
                owner.missed(self._name)
            elif not owner.off:
                self._done = True
                owner.recorder.capture([gradient], self._capture_spec, self._step_id, self._call)
        except Exception as error:
            owner.fault(error)
        owner.recorder.spent_ns += perf_counter_ns() - start

    def finish_backward(self) -> None:
        """Write a row "absent" if there was no gradient. Called when the step has ended."""
        if not self._done:
            self._done = True
            self._owner.recorder.capture([None], self._capture_spec, self._step_id, self._call)


never_trace(GradientHook.__call__)
skip_frames(OutputHook.__call__, GradientHook.__call__)
