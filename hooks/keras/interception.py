"""Interception: while a saved step runs, Keras's functions report to the collector of their thread.

    Layer.__call__              inputs and outputs of layers
    Optimizer.apply             gradients (stateless_apply on JAX), with the scale of a LossScaleOptimizer
    compute_loss of the model   loss and predictions

Functions of classes are replaced for all threads, and call the original function in threads without a
collector. The replacement ends when the last saved step that runs has ended, so nothing of it remains between
saved steps, in models, or in saved files.
Threads: any.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from tdcore.hooks.keras.backend import Backend, Patch
from tdcore.hooks.keras.collector import Collector

__all__ = ["collecting", "instance_attribute", "intercepted"]

_MISSING = object()


class _OfThread(threading.local):
    collector: Collector | None = None


_of_thread = _OfThread()
_lock = threading.Lock()
_users = 0
_installed: ExitStack | None = None


def _current() -> Collector | None:
    return _of_thread.collector


@contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """Make this the collector of the thread within the block."""
    before, _of_thread.collector = _of_thread.collector, collector
    try:
        yield
    finally:
        _of_thread.collector = before


@contextmanager
def intercepted(backend: Backend) -> Iterator[None]:
    """Replace functions of Keras and of the backend within the block."""
    global _users, _installed
    with _lock:
        _users += 1
        if _users == 1:
            with ExitStack() as stack:
                for patch in (*_class_patches(backend), *backend.patches(_current)):
                    stack.enter_context(_replaced(patch))
                _installed = stack.pop_all()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _installed is not None:
                _installed.close()
                _installed = None


@contextmanager
def instance_attribute(target: Any, name: str, value: Any) -> Iterator[None]:
    """Give one object an attribute of its own within the block, past Keras's tracking of attributes."""
    own = vars(target)
    before = own.get(name, _MISSING)
    own[name] = value
    try:
        yield
    finally:
        if before is _MISSING:
            own.pop(name, None)
        else:
            own[name] = before


def loss_reporting(model: Any) -> Callable[..., Any]:
    """A compute_loss for the model that reports the loss and the predictions."""
    compute = model.compute_loss

    @functools.wraps(compute)
    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        loss = compute(*args, **kwargs)
        collector = _current()
        if collector is not None:
            predictions = kwargs.get("y_pred", args[2] if len(args) > 2 else None)
            collector.guarded("losses", collector.loss, loss, predictions)
        return loss

    return compute_loss


@contextmanager
def _replaced(patch: Patch) -> Iterator[None]:
    owner, name, make = patch
    original = vars(owner)[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _class_patches(backend: Backend) -> Iterator[Patch]:
    yield keras.layers.Layer, "__call__", _reporting_layer
    for owner in _owners(backend.apply, (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer)):
        make = _reporting_stateless_apply if backend.apply == "stateless_apply" else _reporting_apply
        yield owner, backend.apply, make


def _owners(name: str, classes: Iterable[type]) -> dict[type, None]:
    """The classes that define the method which the given classes have."""
    return dict.fromkeys(next(each for each in one.__mro__ if name in vars(each)) for one in classes)


def _reporting_layer(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = original(layer, *args, **kwargs)
        collector = _current()
        if collector is not None:
            collector.guarded("activations", collector.layer_called, layer, (args, kwargs), outputs)
        return outputs

    return call


def _reporting_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        collector = _current()
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
        collector = _current()
        if collector is None:
            return original(optimizer, optimizer_variables, grads, trainable_variables)
        with _reported(collector, optimizer, grads, None, optimizer_variables):
            return original(optimizer, optimizer_variables, grads, trainable_variables)

    return stateless_apply


@contextmanager
def _reported(collector: Collector, optimizer: Any, grads: Any, variables: Any, state: Any) -> Iterator[None]:
    """Report gradients, unless an outer optimizer has reported them."""
    if not collector.in_apply:
        collector.guarded("weights", collector.weights_ready)
        collector.guarded("gradients", _report_gradients, collector, optimizer, grads, variables, state)
    collector.in_apply += 1
    try:
        yield
    finally:
        collector.in_apply -= 1


def _report_gradients(collector: Collector, optimizer: Any, grads: Any, variables: Any, state: Any) -> None:
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
