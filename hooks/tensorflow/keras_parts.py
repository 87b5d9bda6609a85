"""Parts of Keras in a training loop: layers, optimizers, losses and metrics. Used if the script has Keras.

TensorFlow comes with Keras 3. This file does not import it. Threads: the training thread.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tdcore.format.layout import TensorKind
from tdcore.hooks.interception import Interception, Patch, collecting, current_collector
from tdcore.hooks.plan import Plan
from tdcore.hooks.step_record import StepValue
from tdcore.hooks.tensorflow.interception import not_converted
from tdcore.hooks.tensorflow.variables import VariableNames

__all__ = [
    "add_model",
    "intercepted_keras",
    "keras_of_script",
    "keras_optimizer_owners",
    "metric_values",
    "optimizer_step_values",
    "report_update",
]

_interception = Interception()


def keras_of_script() -> Any:
    """Keras 3 on TensorFlow; None if the script has no Keras or uses another backend."""
    keras = sys.modules.get("keras")
    backend = getattr(getattr(keras, "backend", None), "backend", None)
    return keras if backend is not None and backend() == "tensorflow" else None


@contextmanager
def intercepted_keras() -> Iterator[None]:
    """Let layers, optimizers, losses and metrics report to the collector of the thread within the block."""
    keras = keras_of_script()
    if keras is None:
        yield
        return
    from tdcore.hooks.keras.interception import intercepted
    from tdcore.hooks.keras.tensorflow_backend import TensorFlowBackend

    with intercepted(TensorFlowBackend()), _interception.installed(_patches(keras)):
        yield


def keras_optimizer_owners() -> list[type]:
    """The classes whose method apply() updates weights."""
    keras = keras_of_script()
    if keras is None:
        return []
    from tdcore.hooks.keras.interception import owners_of

    return list(owners_of("apply", (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer)))


def report_update(collector: Any, optimizer: Any, gradients: Sequence[Any], variables: Any) -> None:
    """Report the gradients that an optimizer of Keras was given outside of intercepted_keras()."""
    from tdcore.hooks.keras.interception import report_gradients

    report_gradients(collector, optimizer, gradients, variables, None)


def add_model(names: VariableNames, model: Any) -> bool:
    """Name the layers and weights of a Keras model. Returns whether the value is a layer or a model."""
    keras = keras_of_script()
    if keras is None or not isinstance(model, keras.layers.Layer):
        return False
    from tdcore.hooks.keras.model_view import flat_layers

    for layer in flat_layers(model):
        if getattr(layer, "built", True):
            names.add_layer(layer)
    return True


def optimizer_step_values(
    optimizer: Any, prefix: str, names: VariableNames, plan: Plan, read: Callable[[Any], Any]
) -> Iterator[StepValue]:
    """See optimizer_state.optimizer_step_values(). prefix: the start of the names."""
    from tdcore.hooks.keras.step_values import learning_rate, optimizer_values

    values = optimizer_values(optimizer, prefix, names, plan, read)
    yield from (each for each in values if each.value is not None)
    known: Mapping[int, Any] = {}
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if getattr(inner, "built", False):
        before = {id(each): read(each) for each in inner.variables}
        known = {key: value for key, value in before.items() if value is not None}
        if id(inner.iterations) not in known:
            return  # a schedule would be read one step too late
    yield from learning_rate(optimizer, prefix, plan, known)


def metric_values(metrics: Sequence[Any], plan: Plan) -> Iterator[StepValue]:
    """The results of metrics after a step, under their names. A metric "loss" is "loss_metric"."""
    for reference in metrics:
        metric = reference()
        if metric is None:
            continue
        name = "loss_metric" if metric.name == "loss" else str(metric.name)
        spec = plan.spec(name, TensorKind.METRIC, type(metric).__name__)
        if spec is not None:
            yield StepValue(spec, np.asarray(metric.result()))


def _patches(keras: Any) -> Iterator[Patch]:
    yield keras.losses.Loss, "__call__", _reporting_criterion
    yield keras.optimizers.LossScaleOptimizer, "scale_loss", _reporting_scale
    pending, seen = [keras.metrics.Metric], set()
    while pending:
        metric = pending.pop()
        if metric in seen:
            continue
        seen.add(metric)
        pending += metric.__subclasses__()
        if "update_state" in vars(metric):
            yield metric, "update_state", _reporting_metric


def _reporting_criterion(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(criterion: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(criterion, y_true, y_pred, *args, **kwargs)
        collector = current_collector()
        if collector is not None and hasattr(collector, "criterion"):  # not of the hook for Keras
            collector.guarded("losses", collector.criterion, y_true, y_pred, loss)
        return loss

    return not_converted(call)


def _reporting_scale(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale_loss(optimizer: Any, loss: Any) -> Any:
        scaled = original(optimizer, loss)
        collector = current_collector()
        if collector is not None and hasattr(collector, "loss_scaled"):
            collector.guarded("losses", collector.loss_scaled, loss, scaled)
        return scaled

    return not_converted(scale_loss)


def _reporting_metric(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_state(metric: Any, *args: Any, **kwargs: Any) -> Any:
        collector = current_collector()
        if collector is not None and hasattr(collector, "metric_updated"):
            collector.guarded("metrics", collector.metric_updated, metric)
        with collecting(None):  # a metric may call a loss function
            return original(metric, *args, **kwargs)

    return not_converted(update_state)
