"""The tap: an identity operation that marks a value of a step while the step is traced or runs.

A tap survives gradients, vmap, scan, remat and shard_map: its tangent is passed on, and a batch of values is
marked as one value with the batch in front. Scalars are marked with one axis, so that every marked value has
a first axis along which the values of devices can be joined. XLA removes the operation.
Threads: any.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive, take_current_trace
from jax.interpreters import ad, batching, mlir

__all__ = ["TAP", "is_traced", "mark", "runs_at_once"]

TAP = Primitive("tdcore_tap")
_numbers = itertools.count()
# Traces in which operations run at once, around those of gradients and of vmap.
_AT_ONCE = frozenset({"EvalTrace", "JVPTrace", "LinearizeTrace", "BatchTrace", "JaxprTrace"})
_receivers: dict[int, Callable[[int, Any], None]] = {}  # by number, for taps of steps that are not compiled


def mark(value: Any, receive: Callable[[int, Any], None] | None = None) -> tuple[int, Any]:
    """Mark a value. Returns the number of the tap and the value, which replaces the original.

    receive: takes the number and the value when the operation runs at once; None: in a trace.
    """
    number = next(_numbers)
    if receive is not None:
        _receivers[number] = receive
    try:
        if jnp.ndim(value):
            return number, TAP.bind(value, number=number)
        return number, TAP.bind(jnp.reshape(value, (1,)), number=number).reshape(())
    finally:
        _receivers.pop(number, None)


def is_traced() -> bool:
    """Whether JAX traces or transforms the function that runs now."""
    with take_current_trace() as trace:
        return type(trace).__name__ != "EvalTrace"


def runs_at_once() -> bool:
    """Whether an operation now gets values, also within gradients and vmap."""
    with take_current_trace() as trace:
        pass
    while trace is not None:
        if type(trace).__name__ not in _AT_ONCE:
            return False
        trace = getattr(trace, "parent_trace", None)
    return True


def _run(value: Any, *, number: int) -> Any:
    receive = _receivers.get(number)
    if receive is not None:
        receive(number, value)
    return value


def _batched(values: Any, axes: Any, *, number: int) -> tuple[Any, int]:
    (value,), (axis,) = values, axes
    return TAP.bind(jnp.moveaxis(value, axis, 0), number=number), 0


def _with_tangent(primals: Any, tangents: Any, *, number: int) -> tuple[Any, Any]:
    return TAP.bind(primals[0], number=number), tangents[0]


TAP.def_impl(_run)
TAP.def_abstract_eval(lambda value, *, number: value)
ad.primitive_jvps[TAP] = _with_tangent
ad.primitive_transposes[TAP] = lambda cotangent, _, *, number: [cotangent]
batching.primitive_batchers[TAP] = _batched
mlir.register_lowering(TAP, lambda context, value, *, number: [value])
