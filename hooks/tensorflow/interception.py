"""Interception: while a saved step is traced or runs, TensorFlow's functions report to the collector.

    tf.GradientTape             gradients and losses
    tf.function                 runs within the function of the step, which can return its tensors
    tf.distribute.Strategy      each replica has a collector, whose tensors run() returns too
    tf.Module.__call__          inputs and outputs of registered modules
    Keras                       see keras_parts.py

Threads: any.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from tdcore.hooks.interception import Interception, Patch, collecting, current_collector
from tdcore.hooks.tensorflow.operations import tuples_of_replicas

__all__ = ["as_traced", "intercepted", "not_converted", "reporting_modules"]

_interception = Interception()
_FUNCTION = type(tf.function(lambda: None))
_STRATEGIES = (tf.distribute.Strategy, tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)


def intercepted() -> AbstractContextManager[None]:
    """Replace functions of TensorFlow within the block."""
    return _interception.installed(_patches())


def not_converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function of tdcore that autograph calls as it is; functions that it calls are not affected."""
    function.autograph_info__ = {}  # type: ignore[attr-defined]  # autograph's own mark
    return function


def as_traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as the tf.function that is being traced would call it: converted by autograph, or not."""
    autograph = tf.__internal__.autograph
    converted: Callable[..., Any] = autograph.tf_convert(
        function, autograph.control_status_ctx(), convert_by_default=False
    )
    return converted


def reporting_modules(modules: Iterable[Any]) -> Iterator[Patch]:
    """Replacements of the call methods of modules without Keras."""
    owners = {
        owner: None
        for module in modules
        for owner in type(module).__mro__
        if "__call__" in vars(owner) and issubclass(owner, tf.Module)
    }
    for owner in owners:
        yield owner, "__call__", _reporting_module


def _patches() -> Iterator[Patch]:
    yield tf.GradientTape, "__enter__", _reporting_enter
    yield tf.GradientTape, "__exit__", _reporting_exit
    yield tf.GradientTape, "gradient", _reporting_gradient
    yield tf.GradientTape, "jacobian", _silent
    yield tf.GradientTape, "batch_jacobian", _silent
    yield _FUNCTION, "__call__", _inlined
    for owner in {each: None for one in _STRATEGIES for each in one.__mro__ if "run" in vars(each)}:
        yield owner, "run", _with_replicas


def _reporting_enter(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def enter(tape: Any) -> Any:
        collector = current_collector()
        if collector is not None:
            collector.tapes.append(id(tape))
        return original(tape)

    return not_converted(enter)


def _reporting_exit(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def leave(tape: Any, *error: Any) -> Any:
        collector = current_collector()
        if collector is not None and id(tape) in collector.tapes:
            collector.tapes.remove(id(tape))
        return original(tape, *error)

    return not_converted(leave)


def _reporting_gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        collector = current_collector()
        if collector is None:
            return original(tape, target, sources, *args, **kwargs)
        found = original(tape, target, sources, *args, **kwargs)
        collector.guarded("gradients", collector.tape_gradient, tape, target, sources, found)
        return found

    return not_converted(gradient)


def _silent(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls gradient() for its own use."""

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        with collecting(None):
            return original(*args, **kwargs)

    return not_converted(method)


def _inlined(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        collector = current_collector()
        if collector is None:
            return original(function, *args, **kwargs)
        if tf.executing_eagerly() or function._jit_compile or function._autograph != _converts():
            if collector.takes_calls:
                collector.note(
                    f"inputs and outputs of layers in the tf.function {function.name}: a compiled function "
                    "of its own cannot return them; call the whole step through @hook.capture_step"
                )
            with collecting(None):
                return original(function, *args, **kwargs)
        args, kwargs = tf.nest.map_structure(_with_tensors, (args, kwargs))
        returned = as_traced(function.python_function)(*args, **kwargs)
        return tf.nest.map_structure(_as_result, returned)

    return not_converted(call)


def _converts() -> bool:
    return bool(tf.__internal__.autograph.control_status_ctx().status.name == "ENABLED")


def _with_tensors(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, (np.ndarray, np.generic)) else value


def _as_result(value: Any) -> Any:
    numbers = (bool, int, float, complex, str, bytes, np.ndarray, np.generic)
    return tf.convert_to_tensor(value) if isinstance(value, numbers) else value


def _with_replicas(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(strategy: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        collector = current_collector()
        if collector is None or strategy.num_replicas_in_sync == 1:
            return original(strategy, fn, args, kwargs, options)
        if tf.executing_eagerly():
            collector.note("tensors of replicas in an eager step; call the step through @hook.capture_step")
            return original(strategy, fn, args, kwargs, options)
        function = as_traced(fn)

        def replica(*inputs: Any, **named: Any) -> Any:
            inner = collector.for_replica()
            with collecting(inner):
                returned = function(*inputs, **named)
            inner.guarded("gradients", inner.settle)
            return returned, inner.values

        with collecting(None):
            returned, taps = original(strategy, not_converted(replica), args, kwargs, options)
        collector.join(tuples_of_replicas(strategy, taps))
        return returned

    return not_converted(run)


def _reporting_module(original: Any) -> Callable[..., Any]:
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        method = original.__get__(module, type(module))
        collector = current_collector()
        if collector is None or id(module) in collector.running:  # a method of a base class
            return as_traced(method)(*args, **kwargs)
        collector.running.add(id(module))
        try:
            outputs = as_traced(method)(*args, **kwargs)
        finally:
            collector.running.discard(id(module))
        collector.guarded("activations", collector.layer_called, module, (args, kwargs), outputs)
        return outputs

    return not_converted(call)
