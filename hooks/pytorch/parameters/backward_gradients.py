"""Gradients after each backward, before other code changes them, captured if requested.

    backward_gradient/<parameter>     after each backward of a saved step: before clipping, and with gradient
                                      accumulation the sum so far. call: n-th backward of the step
    microbatch_gradient/<parameter>   the gradient of this backward only

"gradient/<parameter>" is the gradient that the optimizer uses: the full sum, after clipping.

No function of torch is patched: parameters have hooks from the start of a saved step until all optimizers
have stepped, or the next step begins. The first gradient of a backward queues a callback for the end of the
backward. The callback captures all parameters that have a gradient in one call. It queues itself once more,
so that it runs after the callbacks with which data-parallel wrappers finish their reductions. This queue is
private to torch. Without it, and with compiled autograd, which runs no such callbacks, each gradient is
captured when it is ready.

The gradient of a micro-batch is captured when it is added to the sum, with one native call per parameter,
before any reduction over ranks. torch.autograd.grad() adds nothing to the sum, so it has no such gradients.

A parameter has a row only if this backward has changed its gradient and the gradient still exists at the end.
If an optimizer steps inside backward, the gradient no longer exists; request microbatch_gradient instead. A
nested backward (reentrant checkpointing) counts as a separate backward.

With FSDP2, autograd uses full parameters, so the hooks are on the full parameters: the gradient of a
micro-batch is full, and the gradient after a backward is this rank's shard of the gradients that FSDP2 has
reduced so far. No operator is called on a DTensor, so a tensor hook captures its micro-batch gradients;
torch.autograd.grad() also calls this hook.

With a gradient scaler, values are divided by its scale. With several scalers the scale is unknown, so nothing
is captured, and a warning is logged.

Threads: those of autograd. Keeps no gradient. Keeps the parameters whose micro-batch gradients are requested
while they have hooks, because a graph node lives only while it is referenced, and it refers to its parameter.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from itertools import repeat
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from tdcore.hooks.clock import StepId
from tdcore.hooks.faults import FaultHandler
from tdcore.hooks.plan import CaptureSpec, Plan, TensorSpec
from tdcore.hooks.pytorch.compile.operator import never_trace, skip_frames
from tdcore.hooks.pytorch.compile.tracing import graph_task
from tdcore.hooks.pytorch.model.introspection import isinstance_if_imported
from tdcore.hooks.pytorch.model.model_view import ModelView
from tdcore.hooks.pytorch.model.opt_in_series import BACKWARD, MICROBATCH, requested
from tdcore.hooks.pytorch.parameters.grad_scaler import Scalers
from tdcore.hooks.pytorch.parameters.optimizers import unscaled
from tdcore.hooks.recorder import Recorder

__all__ = ["BackwardGradients"]

_SEVERAL = (
    "several gradient scalers are in use: backward_gradient and microbatch_gradient are not captured, "
    "because the scale of each gradient is not known"
)
_UNSEEN = (
    "the optimizer stepped, but hooks on its parameters received no gradient: backward_gradient and "
    "microbatch_gradient are not captured (sharded parameters get gradients in another way)"
)
_UNKNOWN_END = (
    "backward_gradient of FSDP2's parameters is not captured: this PyTorch version has no callback for the "
    "end of a backward"
)
_queue: Callable[[Callable[[], None]], None] | None = getattr(
    getattr(torch.autograd.Variable, "_execution_engine", None), "queue_callback", None
)

Fired = dict[int, tuple["weakref.ref[torch.Tensor]", TensorSpec]]  # key: id of the name


class BackwardGradients:
    """The hooks on the parameters of one model. fault: BaseHook._fault. warn: logs a message once."""

    def __init__(
        self, recorder: Recorder, scalers: Scalers, fault: FaultHandler, warn: Callable[[str], None]
    ) -> None:
        self.attached = False
        off = weakref.WeakMethod(self.switch_off)
        self._new_recorder = partial(_StepRecorder, recorder, scalers, fault, warn, off)
        self._step_recorder: _StepRecorder | None = None
        self._warn = warn
        self._handles: list[Any] = []
        self._nodes: list[Any] = []
        self._off = False

    def attach(self, step_id: StepId, plan: Plan, view: ModelView, parameters: list[nn.Parameter]) -> None:
        """Attach the hooks when a saved step begins."""
        whole, parts = requested(plan, view, BACKWARD), requested(plan, view, MICROBATCH)
        if self._off or not (whole or parts):
            return
        step_recorder = self._step_recorder = self._new_recorder(step_id)
        self.attached = True
        for position, (parameter, held) in enumerate(
            zip(view.in_backward(parameters), parameters, strict=True)
        ):
            if parameter is None or not parameter.requires_grad or not parameter.is_leaf:
                continue
            part, spec = parts.get(position), whole.get(position)
            if part is not None:
                self._watch_part(
                    parameter, partial(step_recorder.part, part), partial(step_recorder.part_of_node, part)
                )
            if spec is not None and _queue is None and parameter is not held:
                self._warn(_UNKNOWN_END)
            elif spec is not None:
                signal = partial(step_recorder.accumulated, spec, weakref.ref(held))
                self._handles.append(parameter.register_post_accumulate_grad_hook(signal))

    def _watch_part(
        self, parameter: torch.Tensor, signal: Callable[[Any], None], of_node: Callable[[Any], None]
    ) -> None:
        if isinstance_if_imported(parameter, "torch.distributed.tensor", "DTensor"):
            self._handles.append(_TensorHook(parameter, signal))
            return
        view_of: Any = parameter.view_as(parameter)
        node = view_of.grad_fn.next_functions[0][0]
        self._nodes.append(node)
        self._handles.append(node.register_prehook(of_node))

    def step_captured(self) -> None:
        """Remove the hooks, because all optimizers of the model have stepped."""
        if self._step_recorder is not None and not self._step_recorder.seen:
            self._warn(_UNSEEN)
        self.detach()

    def detach(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()
        self._step_recorder, self.attached = None, False

    def switch_off(self) -> None:
        """Stop the capture."""
        self._off = True
        self.detach()


class _TensorHook:
    """Tensor hook that, unlike torch's own handle, leaves nothing in autograd when it is removed."""

    def __init__(self, tensor: torch.Tensor, signal: Callable[[Any], None]) -> None:
        self._handle = tensor.register_hook(signal)
        self._tensor = weakref.ref(tensor)

    def remove(self) -> None:
        """Remove the hook."""
        self._handle.remove()
        tensor = self._tensor()
        if tensor is not None and not tensor._backward_hooks:
            tensor._backward_hooks = None


class _StepRecorder:
    """Recorder of the gradients of one saved step. The hooks of the step call its methods."""

    def __init__(
        self,
        recorder: Recorder,
        scalers: Scalers,
        fault: FaultHandler,
        warn: Callable[[str], None],
        off: weakref.WeakMethod[Callable[[], None]],
        step_id: StepId,
    ) -> None:
        self.seen = False
        self._switch_off = off
        self._recorder = recorder
        self._scalers = scalers
        self._fault = fault
        self._warn = warn
        self._step_id = step_id
        self._fired: dict[int, Fired] = {}  # key: the running backward
        self._ended = 0  # number of backwards of this step that have ended
        self._parts: dict[int, int] = {}  # number of gradients that were captured one by one, by name id

    def part(self, spec: TensorSpec, gradient: torch.Tensor | None) -> None:
        """Capture a parameter's gradient of this backward before it is added to the sum."""
        self._guarded(self._part, spec, (gradient,))

    def part_of_node(self, spec: TensorSpec, gradients: tuple[torch.Tensor | None, ...]) -> None:
        """Call part() from a pre-hook of the node that adds the gradient."""
        self._guarded(self._part, spec, gradients)

    def _part(self, spec: TensorSpec, gradients: tuple[torch.Tensor | None, ...]) -> None:
        self._take([gradients[0]], [spec], self._count(spec))

    def _count(self, spec: TensorSpec) -> int:
        call = self._parts.get(spec.id, 0)
        self._parts[spec.id] = call + 1
        return call

    def accumulated(self, spec: TensorSpec, held: weakref.ref[torch.Tensor], parameter: torch.Tensor) -> None:
        """Note a gradient that was added: a hook on the parameter. held: the optimizer's parameter."""
        self._guarded(self._note, spec, held, parameter)

    def _note(self, spec: TensorSpec, held: weakref.ref[torch.Tensor], parameter: torch.Tensor) -> None:
        self.seen = True
        if _queue is None or graph_task is None or _is_compiled():
            self._take([parameter.grad], [spec], self._count(spec))
            return
        task = graph_task()
        fired = self._fired.get(task)
        if fired is None:
            mine: Fired = {}
            fired = self._fired.setdefault(task, mine)  # the thread of another device may have set it
            if fired is mine:
                _queue(partial(_queue, partial(self._guarded, self._end, task)))
        fired[spec.id] = held, spec

    def _end(self, task: int) -> None:
        """Capture the gradients at the end of a backward."""
        fired = [(reference(), spec) for reference, spec in self._fired.pop(task).values()]
        having = [(one.grad, spec) for one, spec in fired if one is not None and one.grad is not None]
        self._ended += 1
        if having:
            self._take([gradient for gradient, _ in having], [spec for _, spec in having], self._ended - 1)

    def _take(self, gradients: list[Any], specs: list[TensorSpec], call: int) -> None:
        self.seen = True
        scales = self._scalers.in_use()
        if len(scales) > 1:
            self._warn(_SEVERAL)
            return
        if scales:
            gradients = unscaled(gradients, repeat(scales[0]))
        self._recorder.capture(gradients, CaptureSpec(specs), self._step_id, call)

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        start = perf_counter_ns()
        try:
            call(*arguments)
        except Exception as error:
            switch_off, fault = self._switch_off(), self._fault()
            if switch_off is not None:
                switch_off()
            if fault is not None:
                fault("backward gradients", error)
        self._recorder.spent_ns += perf_counter_ns() - start


def _is_compiled() -> bool:
    """Whether compiled autograd runs this backward."""
    compiler = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(compiler, "in_compiled_autograd_region", False))


never_trace(_StepRecorder.part, _StepRecorder.part_of_node, _StepRecorder.accumulated)
skip_frames(_StepRecorder.part, _StepRecorder.part_of_node, _StepRecorder.accumulated, _StepRecorder._guarded)
