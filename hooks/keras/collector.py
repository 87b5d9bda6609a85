"""Collector: the tensors that one saved step returns, put here while the step is traced or runs.

A key is "<kind>:<call>:<name>". The compiled function returns a dictionary with these keys, so what a tensor
is stays with it, however often the function is traced again. Operations inside of a loop, a condition or a
function of their own belong to another graph than the step, which cannot return their tensors: layers that
are called there are noted.
Threads: the thread that traces the step; with a strategy of several replicas, each has a collector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras

from tdcore.format.layout import TensorKind
from tdcore.hooks.keras.backend import Backend
from tdcore.hooks.keras.model_view import ModelView
from tdcore.hooks.plan import Plan

__all__ = ["Collector", "Key", "logged"]


class Key(NamedTuple):
    """Kind, number of the call within the step, and name of a tensor."""

    kind: TensorKind
    call: int
    name: str

    def as_text(self) -> str:
        """The key in the dictionary."""
        return f"{self.kind.value}:{self.call}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Key:
        """The key of a text."""
        kind, call, name = text.split(":", 2)
        return cls(TensorKind(int(kind)), int(call), name)


def logged(logs: Any) -> dict[str, Any]:
    """Loss and metrics from the logs of a step whose tensors are not captured."""
    found = logs.items() if isinstance(logs, dict) else ()
    return {
        Key(TensorKind.LOSS if name == "loss" else TensorKind.METRIC, 0, str(name)).as_text(): value
        for name, value in found
    }


class Level:
    """Tensors of one trace: of the step, or of a function in it whose gradient is computed."""

    def __init__(self, trace: object) -> None:
        self.trace = trace
        self.values: dict[str, Any] = {}


class Collector:
    """Tensors of one step.

    Args:
        plan: Selects the tensors.
        view: Names of the model.
        backend: The backend.
        origins: Names of tensors -> class of the layer; filled by the collector.
        note: Stores a message about tensors that cannot be captured.
        fault: Handles an error of tdcore.
        on_weights: Called when the model has all weights, before they change.
    """

    def __init__(
        self,
        plan: Plan,
        view: ModelView,
        backend: Backend,
        origins: dict[str, str],
        note: Callable[[str], None],
        fault: Callable[[str, Exception], None],
        on_weights: Callable[[], None] | None = None,
    ) -> None:
        self.plan = plan
        self.backend = backend
        self.levels = [Level(backend.trace())]
        self.in_apply = 0
        self.losses = 0
        self.absent: dict[str, str] = {}  # gradients that do not exist, with the class of their layer
        self._view = view
        self._origins = origins
        self._note = note
        self._fault = fault
        self._on_weights = on_weights
        self._calls: Counter[tuple[TensorKind, str]] = Counter()

    @property
    def values(self) -> dict[str, Any]:
        """Tensors by key."""
        return self.levels[0].values

    @contextmanager
    def level(self) -> Iterator[dict[str, Any]]:
        """Put tensors of the block into a dictionary of their own, which join() takes later."""
        level = Level(self.backend.trace())
        self.levels.append(level)
        try:
            yield level.values
        finally:
            self.levels.remove(level)

    def join(self, taps: Mapping[str, Any]) -> None:
        """Add the tensors of a level, as the function that differentiates it has returned them."""
        self.levels[-1].values |= taps

    def guarded(self, part: str, call: Callable[..., object], *args: Any) -> None:
        """Call a function of tdcore whose error must not reach the training."""
        try:
            call(*args)
        except Exception as error:
            self._fault(part, error)

    def add(self, name: str, kind: TensorKind, value: Any, origin: str = "", *, always: bool = False) -> None:
        """Add a tensor that the plan selects."""
        if not self.backend.is_tensor(value):
            return
        if not always and not self._selected(name, kind, origin):
            return
        if not self._reachable(name):
            return
        call = self._calls[kind, name]
        self._calls[kind, name] = call + 1
        self._origins[name] = origin
        self.levels[-1].values[Key(kind, call, name).as_text()] = self.backend.kept(value)

    def _selected(self, name: str, kind: TensorKind, origin: str) -> bool:
        """Whether the plan selects a tensor. Stored, because on torch every saved step needs it."""
        key = "selected", name, kind, origin
        known: dict[Any, bool] = self.plan.cache
        if key not in known:
            known[key] = self.plan.may_take(kind) and self.plan.takes(name, kind, origin)
        return known[key]

    def layer_called(self, layer: Any, inputs: Any, outputs: Any) -> None:
        """Add the inputs and outputs of one call of a layer."""
        if self.backend.is_building():
            return
        wanted = [
            (kind, end, values)
            for kind, end, values in (
                (TensorKind.INPUT, "input", inputs),
                (TensorKind.OUTPUT, "output", outputs),
            )
            if self.plan.may_take(kind)
        ]
        if not wanted:
            return
        origin = type(layer).__name__
        name = self._view.layer_name(layer)
        for kind, end, values in wanted:
            tensors = list(filter(self.backend.is_tensor, keras.tree.flatten(values)))
            for number, tensor in enumerate(tensors):
                self.add(f"{name}_{end}_{number}", kind, tensor, origin)

    def batch(self, data: Any) -> None:
        """Add the labels of a batch."""
        if self.plan.may_take(TensorKind.CUSTOM):
            _, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
            self._add_flat("labels", labels)

    def loss(self, loss: Any, predictions: Any) -> None:
        """Add the loss of the batch, and the predictions from which it was computed."""
        self.losses += 1
        self.add("loss", TensorKind.LOSS, loss)
        if predictions is not None:
            self.predictions(predictions)

    def predictions(self, predictions: Any) -> None:
        """Add the outputs of the whole model."""
        if self.plan.may_take(TensorKind.CUSTOM):
            self._add_flat("predictions", predictions)

    def metrics(self, logs: Any) -> None:
        """Add what the step returned as logs."""
        for name, value in logs.items() if isinstance(logs, dict) else ():
            if name != "loss":
                self.add(str(name), TensorKind.METRIC, value)
            elif not self.losses:
                self.add("loss", TensorKind.LOSS, value)

    def gradients(self, optimizer: Any, gradients: Any, variables: Any, scale: Any) -> None:
        """Add the gradients that an optimizer was given. scale: of the loss, None if there is none."""
        if scale is not None:
            self._scale(optimizer, gradients, scale)
        if not self.plan.may_take(TensorKind.GRADIENT):
            return
        weights = {each.name: each for each in self._view.weights()}
        for gradient, variable in zip(gradients, variables, strict=False):
            name = self._view.variable_name(variable)
            if not name:
                continue
            known, called = weights[name], f"gradient/{name}"
            if gradient is None:
                self.absent[called] = known.origin
            elif self.plan.takes(called, TensorKind.GRADIENT, known.origin):
                value = self.backend.dense(gradient)
                value = value if scale is None else value / keras.ops.cast(scale, value.dtype)
                self.add(called, TensorKind.GRADIENT, value, known.origin)

    def weights_ready(self) -> None:
        """Record the weights of a model that was built in this step, before they change."""
        ready, self._on_weights = self._on_weights, None
        if ready is not None:
            ready()

    def _scale(self, optimizer: Any, gradients: Any, scale: Any) -> None:
        kind, origin = TensorKind.HYPERPARAMETER, type(optimizer).__name__
        given = [self.backend.dense(gradient) for gradient in gradients if gradient is not None]
        finite = [keras.ops.all(keras.ops.isfinite(gradient)) for gradient in given]
        found = keras.ops.logical_not(keras.ops.all(keras.ops.stack(finite)))
        self.add(
            "optimizer/grad_scale",
            kind,
            self.backend.dense(keras.ops.convert_to_tensor(scale)),
            origin,
            always=True,
        )
        self.add("optimizer/found_inf", kind, keras.ops.cast(found, "float32"), origin, always=True)

    def _add_flat(self, name: str, values: Any) -> None:
        tensors = [value for value in keras.tree.flatten(values) if self.backend.is_tensor(value)]
        for number, tensor in enumerate(tensors):
            self.add(name if len(tensors) == 1 else f"{name}_{number}", TensorKind.CUSTOM, tensor)

    def _reachable(self, name: str) -> bool:
        if self.backend.trace() == self.levels[-1].trace:
            return True
        self._note(
            f"{name}: it is computed in a loop, a condition or a compiled function within the step, "
            "which cannot return it"
        )
        return False
