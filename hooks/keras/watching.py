"""Hook.watch(): the methods of a model report to a hook that is not passed as a callback.

The model gets six methods of its own, which Keras neither tracks nor saves. Threads: the training thread.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from tdcore.hooks.keras.driver import StepDriver

__all__ = ["unwatch", "watch"]

_LOOPS = ("fit", "evaluate", "predict")
_BATCHES = {"train_on_batch": "train", "test_on_batch": "test", "predict_on_batch": "predict"}
_watched: dict[int, list[tuple[weakref.ref[Any], str, Any]]] = {}  # by id of the hook


def watch(hook: StepDriver, model: Any) -> None:
    """Replace the methods of the model. Raises ConfigError."""
    if not isinstance(model, keras.Model):
        raise ConfigError(f"watch() needs a keras.Model, got {type(model).__name__}")
    if hook._off:
        return
    methods = _watched.setdefault(id(hook), [])
    if any(reference() is model for reference, _, _ in methods):
        return
    for name in (*_LOOPS, *_BATCHES):
        original = getattr(model, name)
        wrapped = _with_callback(hook, original) if name in _LOOPS else _with_step(hook, model, original)
        vars(model)[name] = wrapped
        methods.append((weakref.ref(model), name, wrapped))


def unwatch(hook: StepDriver) -> None:
    """Remove the methods again."""
    for reference, name, wrapped in _watched.pop(id(hook), ()):
        model = reference()
        if model is not None and vars(model).get(name) is wrapped:
            del vars(model)[name]


def _with_callback(hook: StepDriver, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments.get("callbacks")
        if isinstance(given, keras.callbacks.CallbackList):
            return original(*args, **kwargs)  # of a fit() that has the hook
        callbacks = list(given) if isinstance(given, (list, tuple)) else [given] if given else []
        if not any(each is hook for each in callbacks):
            bound.arguments["callbacks"] = [*callbacks, hook]
        return original(*bound.args, **bound.kwargs)

    return method


def _with_step(hook: StepDriver, model: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    mode = _BATCHES[original.__name__]
    reference = weakref.ref(model)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        found = reference()
        getattr(found, f"make_{mode}_function")()
        hook._guarded("steps", hook._install, found, mode)
        try:
            return original(*args, **kwargs)
        finally:
            hook._guarded("steps", hook._uninstall, found, mode)

    return method
