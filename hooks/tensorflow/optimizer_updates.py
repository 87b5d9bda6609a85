"""Calls hooks around each update by an optimizer.

While a hook listens, the optimizers of Keras have another `apply`, the method that every update ends in.
Other optimizers get a method of their own by Hook.wrap_optimizer(). Threads: the training thread.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tdcore.hooks.interception import Interception
from tdcore.hooks.tensorflow.interception import not_converted
from tdcore.hooks.tensorflow.keras_parts import keras_optimizer_owners

__all__ = ["UpdateListener", "listen", "unlisten", "wrap_updates"]


class UpdateListener(Protocol):
    """Object that is called before and after each update of any optimizer. Its methods must not raise.

    Exception: before_update() raises StopTraining.
    """

    def before_update(self, optimizer: Any, gradients: Sequence[Any], variables: Any) -> None:
        """Called when gradients are final. variables: None if the optimizer has them."""

    def after_update(self, optimizer: Any) -> None:
        """Called when the weights have changed."""

    def traced_update(self, optimizer: Any, variables: Any) -> None:
        """Called when an update becomes a part of a compiled function."""


class _OfThread(threading.local):
    updating = False


_of_thread = _OfThread()
_listeners: weakref.WeakSet[Any] = weakref.WeakSet()
_interception = Interception()


def listen(listener: UpdateListener) -> None:
    """Call the listener around updates. It is not kept alive."""
    if not _listeners:
        _interception.install([(owner, "apply", _calling) for owner in keras_optimizer_owners()])
    _listeners.add(listener)


def unlisten(listener: UpdateListener) -> None:
    """No longer call the listener. After the last one, Keras is as before."""
    if listener in _listeners:
        _listeners.discard(listener)
        if not _listeners:
            _interception.remove()


def wrap_updates(optimizer: Any) -> Callable[[], None]:
    """Call listeners around apply_gradients() of an optimizer that is not of Keras.

    Returns:
        A function that restores the optimizer. It does not keep the optimizer alive.
    """
    original = optimizer.apply_gradients
    reference = weakref.ref(optimizer)

    @functools.wraps(original)
    def apply_gradients(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        found = reference()
        gradients, variables = [each for each, _ in pairs], [each for _, each in pairs]
        return _around(found, gradients, variables, lambda: original(pairs, *args, **kwargs))

    optimizer.apply_gradients = not_converted(apply_gradients)

    def restore() -> None:
        found = reference()
        if found is not None and vars(found).get("apply_gradients") is apply_gradients:
            del found.apply_gradients

    return restore


def _calling(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if _of_thread.updating:  # an optimizer within an optimizer
            return original(optimizer, grads, trainable_variables)
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        return _around(
            optimizer, grads, trainable_variables, lambda: original(optimizer, grads, trainable_variables)
        )

    return not_converted(apply)


def _around(optimizer: Any, gradients: Any, variables: Any, update: Callable[[], Any]) -> Any:
    listeners = list(_listeners)
    eager = tf.executing_eagerly()
    for listener in listeners:
        if eager:
            listener.before_update(optimizer, gradients, variables)
        else:
            listener.traced_update(optimizer, variables)
    _of_thread.updating = True
    try:
        result = update()
    finally:
        _of_thread.updating = False
    for listener in listeners if eager else ():
        listener.after_update(optimizer)
    return result
