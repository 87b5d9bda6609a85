"""Interception: while a saved step is traced, functions of JAX, Flax and Optax report to the collector.

    the function behind jax.grad and jax.value_and_grad   gradients, and the loss
    GradientTransformation.update, MultiSteps.update      gradients and updates (of Optax)
    methods of linen modules, __call__ of nnx modules      inputs and outputs

The functions are replaced for all threads, and call the original function in threads without a collector. The
replacement ends when the last step that is traced has been traced, so nothing of it remains between saved
steps. Threads: any.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import jax

from tdcore.hooks.jax.collector import Collector

__all__ = ["collecting", "current_collector"]


class _OfThread(threading.local):
    collector: Collector | None = None


_of_thread = _OfThread()
_lock = threading.Lock()
_users = 0
_installed: ExitStack | None = None


def current_collector() -> Collector | None:
    """The collector of the thread."""
    return _of_thread.collector


@contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """Make this the collector of the thread within the block, and replace the functions that report to it."""
    with _intercepted(), _linen_methods():
        before, _of_thread.collector = _of_thread.collector, collector
        try:
            yield
        finally:
            _of_thread.collector = before


@contextmanager
def _intercepted() -> Iterator[None]:
    global _users, _installed
    with _lock:
        _users += 1
        if _users == 1:
            with ExitStack() as stack:
                _replace_gradients(stack)
                _replace_optax(stack)
                _replace_nnx(stack)
                _installed = stack.pop_all()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _installed is not None:
                _installed.close()
                _installed = None


def _replace(stack: ExitStack, owner: type, name: str, value: Any) -> None:
    before = vars(owner)[name]
    setattr(owner, name, value)
    stack.callback(setattr, owner, name, before)


# Gradients --------------------------------------------------------------------------------------------------


def _replace_gradients(stack: ExitStack) -> None:
    """Replace the function with which jax.grad and jax.value_and_grad compute, however they were imported."""
    names = inspect.unwrap(jax.value_and_grad).__globals__
    original = names.get("vjp")
    if original is not None:
        names["vjp"] = _reporting_vjp(original)
        stack.callback(names.__setitem__, "vjp", original)


def _reporting_vjp(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def vjp(*args: Any, **kwargs: Any) -> Any:
        collector = current_collector()
        if collector is None or collector.in_gradient or collector.in_update:
            return original(*args, **kwargs)
        collector.in_gradient += 1
        try:
            value, backward, *aux = original(*args, **kwargs)
        finally:
            collector.in_gradient -= 1

        def reporting_backward(*cotangents: Any) -> Any:
            gradients = backward(*cotangents)
            return collector.guarded("gradients", _report_each, gradients, collector)

        return (collector.guarded("losses", collector.loss, value), reporting_backward, *aux)

    return vjp


def _report_each(gradients: Any, collector: Collector) -> Any:
    return tuple(collector.gradients(each, "differentiation") for each in gradients)


# Optax ------------------------------------------------------------------------------------------------------


def _replace_optax(stack: ExitStack) -> None:
    optax = sys.modules.get("optax")
    transformation = getattr(optax, "GradientTransformation", None)
    if transformation is not None and "update" in vars(transformation):
        place = transformation._fields.index("update")
        _replace(stack, transformation, "update", property(lambda own: _reporting_update(tuple(own)[place])))
    accumulation = getattr(optax, "MultiSteps", None)
    if accumulation is not None and "update" in vars(accumulation):
        original = vars(accumulation)["update"]
        _replace(stack, accumulation, "update", _reporting_method(original))


def _reporting_method(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _reporting_update(functools.partial(original, self))(*args, **kwargs)

    return update


def _reporting_update(original: Callable[..., Any]) -> Callable[..., Any]:
    collector = current_collector()
    if collector is None or collector.in_update or collector.in_gradient:
        return original

    def update(updates: Any, *args: Any, **kwargs: Any) -> Any:
        updates = collector.guarded("gradients", collector.gradients, updates, "optimizer")
        collector.in_update += 1
        try:
            changes, *state = original(updates, *args, **kwargs)
        finally:
            collector.in_update -= 1
        return (collector.guarded("updates", collector.updates, changes), *state)

    return update


# Modules ----------------------------------------------------------------------------------------------------


@contextmanager
def _linen_methods() -> Iterator[None]:
    linen = sys.modules.get("flax.linen")
    if linen is None:
        yield
        return
    with linen.intercept_methods(_report_linen):
        yield


def _report_linen(method: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    collector = current_collector()
    module, name = context.module, context.method_name
    internal = name == "setup" or (name.startswith("_") and name != "__call__")
    if collector is None or internal or module.scope is None or module.is_initializing():
        return method(*args, **kwargs)
    collector.in_linen.append(module)
    try:
        root = type(collector.in_linen[0]).__name__  # lifted transformations make new modules without parents
        path = tuple(module.path) if name == "__call__" else (*module.path, name)
        place = root, path, type(module).__name__
        args, kwargs = collector.guarded("inputs", collector.module, (args, kwargs), "input", *place)
        outputs = method(*args, **kwargs)
    finally:
        collector.in_linen.pop()
    return collector.guarded("outputs", collector.module, outputs, "output", *place)


def _replace_nnx(stack: ExitStack) -> None:
    nnx = sys.modules.get("flax.nnx")
    pending = [nnx.Module] if nnx is not None else []
    seen: set[type] = set()
    while pending:
        owner = pending.pop()
        if owner not in seen:
            seen.add(owner)
            pending += owner.__subclasses__()
            if inspect.isfunction(vars(owner).get("__call__")):
                _replace(stack, owner, "__call__", _reporting_nnx(vars(owner)["__call__"]))


def _reporting_nnx(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        collector = current_collector()
        if collector is None or any(each is module for each in collector.in_modules):
            return original(module, *args, **kwargs)  # the method of a base class
        collector.in_modules.append(module)
        try:
            place = collector.guarded("modules", _nnx_place, (), collector.in_modules)
            if place:
                args, kwargs = collector.guarded("inputs", collector.module, (args, kwargs), "input", *place)
            outputs = original(module, *args, **kwargs)
        finally:
            collector.in_modules.pop()
        return collector.guarded("outputs", collector.module, outputs, "output", *place) if place else outputs

    return call


def _nnx_place(_: Any, active: list[Any]) -> tuple[str, tuple[str, ...], str]:
    """Class of the outermost module, path of the innermost one below it, and its class."""
    nnx = sys.modules["flax.nnx"]
    path: tuple[str, ...] = ()
    for outer, inner in pairwise(active):  # modules in a transformation are other objects than outside
        found = next((each for each, one in nnx.iter_graph(outer) if one is inner), (type(inner).__name__,))
        path = (*path, *map(str, found))
    return type(active[0]).__name__, path, type(active[-1]).__name__
