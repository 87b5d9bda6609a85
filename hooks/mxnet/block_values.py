"""BlockValues: capture of parameters, gradients, inputs, outputs and losses of blocks.

Each method reads its values when it is called and keeps no reference. Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from mxnet.gluon.parameter import DeferredInitializationError

from tdcore.format.layout import TensorKind
from tdcore.hooks.clock import CurrentStep
from tdcore.hooks.mxnet.arrays import listed_arrays, readable
from tdcore.hooks.plan import NO_BACKWARD, CaptureSpec, Plan, TensorSpec
from tdcore.hooks.recorder import Recorder

__all__ = ["BlockValues"]


class BlockValues:
    """Capture of values of blocks in the current step.

    Args:
        recorder: Passes values to the ring.
        now: The current step.
    """

    def __init__(self, recorder: Recorder, now: CurrentStep) -> None:
        self._recorder = recorder
        self._now = now

    def parameters(self, parameters: Iterable[Any], plan: Plan) -> list[Any]:
        """Capture weights, biases and moving statistics. Return the parameters that have no values yet."""
        values, specs, later = [], [], []
        for parameter in parameters:
            kind = TensorKind.BIAS if parameter.name.endswith("bias") else TensorKind.WEIGHT
            spec = plan.spec(parameter.name, kind)
            if spec is None:
                continue
            try:
                values.append(readable(parameter.list_data()[0]))
            except (DeferredInitializationError, RuntimeError):  # not initialized
                later.append(parameter)
                continue
            specs.append(spec)
        self._capture(values, specs)
        return later

    def gradients(self, parameters: Iterable[Any], plan: Plan) -> None:
        """Capture gradients before the trainer uses them."""
        by_call: dict[int, list[tuple[Any, TensorSpec, int]]] = {}  # a step may have several updates
        for parameter in parameters:
            name = f"gradient/{parameter.name}"
            spec = plan.spec(name, TensorKind.GRADIENT)
            if spec is None:
                continue
            trains = parameter.grad_req != "null"
            fresh = trains and parameter.list_data()[0]._fresh_grad
            value = readable(parameter.list_grad()[0]) if fresh else None
            found = by_call.setdefault(self._now.next_call(name), [])
            found.append((value, spec, NO_BACKWARD if trains and not fresh else 0))
        for call, found in by_call.items():
            values, specs, reasons = zip(*found, strict=True)
            self._recorder.capture(list(values), CaptureSpec(specs).with_reasons(reasons), call=call)

    def learning_rate(self, trainer: Any, number: int, plan: Plan) -> None:
        """Capture the learning rate of a trainer. number: number of the trainer, from 0."""
        name = f"optimizer{f'_{number}' if number else ''}/group_0/lr"
        spec = plan.spec(name, TensorKind.HYPERPARAMETER)
        if spec is not None:
            self._capture([np.float64(trainer.learning_rate)], [spec])

    def of_block(self, block: Any, kind: TensorKind, value: Any, plan: Plan) -> None:
        """Capture the arrays of a block's input or output."""
        if not plan.may_take(kind):
            return
        word = "input" if kind is TensorKind.INPUT else "output"
        origin = type(block).__name__
        values, specs = [], []
        for number, array in enumerate(listed_arrays(value)):
            spec = plan.spec(f"{block.name}_{word}_{number}", kind, origin)
            if spec is not None:
                values.append(readable(array))
                specs.append(spec)
        self._capture(values, specs, self._now.next_call(f"{block.name}_{word}") if values else 0)

    def loss(self, block: Any, value: Any, plan: Plan) -> None:
        """Capture a loss, and its mean over the samples if the loss has several values."""
        self.of_block(block, TensorKind.LOSS, value, plan)
        for array in listed_arrays(value):
            name = f"{block.name}_mean"
            spec = plan.spec(name, TensorKind.LOSS, type(block).__name__) if array.size > 1 else None
            if spec is not None:
                mean = array.asnumpy().mean(dtype="float64")
                self._capture([mean], [spec.whole], self._now.next_call(name))

    def _capture(self, values: list[Any], specs: list[TensorSpec], call: int = 0) -> None:
        if values:
            self._recorder.capture(values, CaptureSpec(specs), call=call)
