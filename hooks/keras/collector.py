"""Collector: the tensors that one saved step of a Keras model returns. See step_collector.py.

Threads: the thread that traces the step; with a strategy of several replicas, each has a collector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras

from tdcore.format.layout import TensorKind
from tdcore.hooks.keras.backend import Backend
from tdcore.hooks.keras.model_view import ModelView
from tdcore.hooks.plan import Plan
from tdcore.hooks.step_collector import Key, StepCollector

__all__ = ["Collector", "logged"]


def logged(logs: Any) -> dict[str, Any]:
    """Loss and metrics from the logs of a step whose tensors are not captured."""
    found = logs.items() if isinstance(logs, dict) else ()
    return {
        Key(TensorKind.LOSS if name == "loss" else TensorKind.METRIC, 0, str(name)).as_text(): value
        for name, value in found
    }


class Collector(StepCollector):
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
        StepCollector.__init__(self, plan, backend, origins, note, fault, on_weights)
        self.backend = backend
        self.losses = 0
        self._view = view

    def batch(self, data: Any) -> None:
        """Add the labels of a batch."""
        if self.plan.may_take(TensorKind.CUSTOM):
            _, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
            self.add_flat("labels", labels)

    def loss(self, loss: Any, predictions: Any) -> None:
        """Add the loss of the batch, and the predictions from which it was computed."""
        self.losses += 1
        self.add("loss", TensorKind.LOSS, loss)
        if predictions is not None:
            self.predictions(predictions)

    def predictions(self, predictions: Any) -> None:
        """Add the outputs of the whole model."""
        if self.plan.may_take(TensorKind.CUSTOM):
            self.add_flat("predictions", predictions)

    def metrics(self, logs: Any) -> None:
        """Add what the step returned as logs."""
        for name, value in logs.items() if isinstance(logs, dict) else ():
            if name != "loss":
                self.add(str(name), TensorKind.METRIC, value)
            elif not self.losses:
                self.add("loss", TensorKind.LOSS, value)

    def _layer_name(self, layer: Any) -> str:
        return self._view.layer_name(layer)

    def _weight(self, variable: Any) -> tuple[str, str]:
        return self._view.weight_of(variable)

    def _flat(self, values: Any) -> Iterable[Any]:
        found: Iterable[Any] = keras.tree.flatten(values)
        return found

    def _unscaled(self, gradient: Any, scale: Any) -> Any:
        return gradient / keras.ops.cast(scale, gradient.dtype)

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
