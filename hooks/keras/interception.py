"""Interception: while a saved step runs, Keras's functions report to the collector of their thread.

    Layer.__call__              inputs and outputs of layers
    Optimizer.apply             gradients (stateless_apply on JAX), with the scale of a LossScaleOptimizer
    compute_loss of the model   loss and predictions

Threads: any.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Any

import keras

from tdcore.hooks.interception import Interception, Patch, current_collector
from tdcore.hooks.keras.backend import Backend
from tdcore.hooks.step_collector import StepCollector

__all__ = ["intercepted", "loss_reporting", "owners_of", "report_gradients"]

_interception = Interception()


def intercepted(backend: Backend) -> AbstractContextManager[None]:
    """Replace functions of Keras and of the backend within the block."""
    return _interception.installed(chain(_class_patches(backend), backend.patches(current_collector)))


def loss_reporting(model: Any) -> Callable[..., Any]:
    """A compute_loss for the model that reports the loss and the predictions."""
    compute = model.compute_loss

    @functools.wraps(compute)
    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        loss = compute(*args, **kwargs)
        collector = current_collector()
        if collector is not None:
            predictions = kwargs.get("y_pred", args[2] if len(args) > 2 else None)
            collector.guarded("losses", collector.loss, loss, predictions)
        return loss

    return compute_loss


def _class_patches(backend: Backend) -> Iterator[Patch]:
    yield keras.layers.Layer, "__call__", _reporting_layer
    for owner in owners_of(backend.apply, (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer)):
        make = _reporting_stateless_apply if backend.apply == "stateless_apply" else _reporting_apply
        yield owner, backend.apply, make


def owners_of(name: str, classes: Iterable[type]) -> dict[type, None]:
    """The classes that define the method which the given classes have."""
    return dict.fromkeys(next(each for each in one.__mro__ if name in vars(each)) for one in classes)


def _reporting_layer(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = original(layer, *args, **kwargs)
        collector = current_collector()
        if collector is not None:
            collector.guarded("activations", collector.layer_called, layer, (args, kwargs), outputs)
        return outputs

    return call


def _reporting_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        collector = current_collector()
        if collector is None:
            return original(optimizer, grads, trainable_variables)
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        with _reported(collector, optimizer, grads, trainable_variables, None):
            return original(optimizer, grads, trainable_variables)

    return apply


def _reporting_stateless_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def stateless_apply(
        optimizer: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        collector = current_collector()
        if collector is None:
            return original(optimizer, optimizer_variables, grads, trainable_variables)
        with _reported(collector, optimizer, grads, None, optimizer_variables):
            return original(optimizer, optimizer_variables, grads, trainable_variables)

    return stateless_apply


@contextmanager
def _reported(
    collector: StepCollector, optimizer: Any, grads: Any, variables: Any, state: Any
) -> Iterator[None]:
    """Report gradients, unless an outer optimizer has reported them."""
    if not collector.in_apply:
        collector.guarded("weights", collector.weights_ready)
        collector.guarded("gradients", report_gradients, collector, optimizer, grads, variables, state)
    collector.in_apply += 1
    try:
        yield
    finally:
        collector.in_apply -= 1


def report_gradients(
    collector: StepCollector, optimizer: Any, grads: Any, variables: Any, state: Any
) -> None:
    """Report the gradients that an optimizer was given, with the scale of the loss.

    Args:
        collector: Takes the gradients.
        optimizer: The optimizer.
        grads: The gradients.
        variables: Their variables; None: those of the optimizer.
        state: The optimizer's variables on JAX.
    """
    if variables is None:
        variables = optimizer._trainable_variables
    scale = None
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        scale = optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
        if state is not None:
            places = [id(each) for each in optimizer.variables]
            scale = state[places.index(id(optimizer.dynamic_scale))]
    elif getattr(optimizer, "loss_scale_factor", None) is not None:
        scale = optimizer.loss_scale_factor
    collector.gradients(optimizer, grads, variables, scale)
