"""Gradients of what modules give, captured in backward at the moment they are there, when that is asked.

    output_gradient/conv1_output_0      of the collection "output_gradients"; `call` is that of the output

They come in the order of backward, before the gradients of parameters, which are taken at the optimizer's
step. Values are those of backward: with a gradient scaler they are scaled. An output whose gradient has not
come when the next step begins gets a row "absent"; of several backwards through one output the first is
captured. Those that come after, or too late, are counted in collections.json ("output_gradients_missed").
What activation checkpointing computes again under use_reentrant=True has no graph in its first forward, and
no row. Modules in code compiled by torch.compile have none either; collections.json says so.

Threads: attach, detach and settle in the training thread; gradients come in those of autograd. Keeps no
tensor alive.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from contextlib import suppress
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tdcore.format.layout import TensorKind
from tdcore.hooks.clock import Stamp
from tdcore.hooks.plan import Batch, Plan, Want
from tdcore.hooks.pytorch.compiled import compile_in_use
from tdcore.hooks.pytorch.leaves import leaves
from tdcore.hooks.pytorch.model import ModelView, Module
from tdcore.hooks.pytorch.operator import is_compiling, never_trace, skip_frames
from tdcore.hooks.pytorch.tap import Fault, InertInCopies, graph_task
from tdcore.hooks.recorder import Recorder

__all__ = ["OutputGradients"]

_KIND = TensorKind.OUTPUT_GRADIENT
_COMPILED = "torch.compile is in use: modules that run in compiled code have none"


class OutputGradients:
    """Those of one model. fault: BaseHook._fault. notes: of collections.json."""

    def __init__(self, recorder: Recorder, fault: Fault, notes: dict[str, Any]) -> None:
        self.recorder = recorder
        self.fault_ref = fault
        self.off = False
        self._notes = notes
        self._missed: Counter[str] = Counter()
        self._key = RemovableHandle(OrderedDict()).id  # unique among all hooks of the process
        self.attached: list[dict[Any, Any]] = []  # not empty: modules carry hooks
        self._leaves: list[RemovableHandle] = []  # on tensors that outlive their graph
        self.awaited: list[Awaited] = []  # of the running step

    def attach(self, view: ModelView, plan: Plan, spared: Collection[str]) -> None:
        """The root's forward begins, in a step that saves some. spared: modules that carry no hook now."""
        if self.off:
            return
        self.detach()
        if compile_in_use() and "output_gradients" not in self._notes:
            self._notes["output_gradients"] = _COMPILED
        for watch in self._watches(view, plan):
            module: Any = watch.module.module()
            if module is not None and watch.module.name not in spared:
                with suppress(Exception):  # some foreign kinds take no hooks; taps.py says so
                    module._forward_hooks[self._key] = watch
                    self.attached.append(module._forward_hooks)

    def detach(self) -> None:
        """The root's forward has ended, or the hook is closed."""
        for hooks in self.attached:
            hooks.pop(self._key, None)
        self.attached.clear()

    def settle(self) -> None:
        """The next step begins: what has not come by now is absent."""
        awaited, self.awaited = self.awaited, []
        for handle in self._leaves:
            handle.remove()
        self._leaves.clear()
        if not self.off:
            for one in awaited:
                one.settle()

    def switch_off(self) -> None:
        """Captures nothing from now on."""
        self.off = True
        self.detach()

    def fault(self, error: Exception) -> None:
        """An error of our own."""
        fault = self.fault_ref()
        if fault is not None:
            fault("output gradients", error)

    def until_next_step(self, handle: RemovableHandle) -> None:
        """A tensor that no graph made may carry a hook for long."""
        self._leaves.append(handle)

    def missed(self, name: str) -> None:
        """One more backward came through an output that has its row."""
        self._missed[name] += 1
        self._notes["output_gradients_missed"] = self._notes.get("output_gradients_missed", {}) | {
            name: self._missed[name]
        }

    def _watches(self, view: ModelView, plan: Plan) -> list[Watch]:
        """The modules that gave something wanted, or may still."""
        key = ("output gradients", view.root_name)
        known = plan.cache.get(key)
        if known is None or known[0] is not view:
            known = (view, [Watch(self, module, plan) for module in view.modules])
        watches = [watch for watch in known[1] if watch.useful or not watch.called]
        plan.cache[key] = (view, watches)
        return watches


class Watch(InertInCopies):
    """A forward hook: asks the outputs of one module for their gradients. useful: some are wanted."""

    __slots__ = ("_owner", "_plan", "_prefix", "called", "module", "useful")

    def __init__(self, owner: OutputGradients, module: Module, plan: Plan) -> None:
        self.module = module
        self.called = self.useful = False
        self._owner = owner
        self._plan = plan
        self._prefix = f"output_gradient/{module.name}_output_"

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        """As a forward hook. Never raises."""
        if is_compiling():
            return
        if graph_task is not None and graph_task() != -1:
            return  # computed again in backward
        start, owner = perf_counter_ns(), self._owner
        try:
            self.called = True
            call = owner.recorder.now.next_call(self._prefix)
            for end, tensor in leaves(output):
                name = self._prefix + end
                want = self._plan.want(name, _KIND, self.module.origin)
                if want is not None:
                    self.useful = True
                    if tensor.requires_grad:
                        self._ask(tensor, Awaited(owner, name, want, call))
        except Exception as error:
            owner.fault(error)
        owner.recorder.spent_ns += perf_counter_ns() - start

    def _ask(self, tensor: torch.Tensor, awaited: Awaited) -> None:
        handle = tensor.register_hook(awaited)
        self._owner.awaited.append(awaited)
        if tensor.grad_fn is None:
            self._owner.until_next_step(handle)


class Awaited:
    """A tensor hook: captures the gradient of one output, or at the step's end that there was none."""

    __slots__ = ("_batch", "_call", "_done", "_name", "_owner", "_stamp")

    def __init__(self, owner: OutputGradients, name: str, want: Want, call: int) -> None:
        self._done = False
        self._owner = owner
        self._name = name
        self._batch = Batch([want])
        self._stamp: Stamp = owner.recorder.now.stamp
        self._call = call

    def __call__(self, gradient: torch.Tensor) -> None:
        """As a tensor hook. Never raises."""
        start, owner = perf_counter_ns(), self._owner
        try:
            if self._done:
                owner.missed(self._name)
            elif not owner.off:
                self._done = True
                owner.recorder.capture([gradient], self._batch, self._stamp, self._call)
        except Exception as error:
            owner.fault(error)
        owner.recorder.spent_ns += perf_counter_ns() - start

    def settle(self) -> None:
        """The step is over."""
        if not self._done:
            self._done = True
            self._owner.recorder.capture([None], self._batch, self._stamp, self._call)


never_trace(Awaited.__call__)
skip_frames(Watch.__call__, Awaited.__call__)
