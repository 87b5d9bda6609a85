"""Keras on JAX: pure steps, with and without jit, and arrays that are sharded over devices.

Within a function whose gradient JAX computes, tensors belong to that function's trace. While a saved step is
traced, jax.value_and_grad and jax.grad return the tensors of such a function in its auxiliary output.
Threads: the training thread.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tdcore.hooks.interception import Patch
from tdcore.hooks.jax_arrays import copied, host_array, is_numeric
from tdcore.hooks.keras.backend import OUTPUTS, TAPS, Read

if TYPE_CHECKING:
    from tdcore.hooks.keras.collector import Collector

__all__ = ["JaxBackend"]

_STATE = {
    "train": ("trainable_variables", "non_trainable_variables", "optimizer", "metrics_variables"),
    "test": ("trainable_variables", "non_trainable_variables", "metrics_variables"),
    "predict": ("trainable_variables", "non_trainable_variables"),
}


class JaxBackend:
    """See backend.Backend."""

    name = "jax"
    apply = "stateless_apply"
    stateful = False

    def trace(self) -> object:
        """The state of JAX's tracing."""
        return jax.core.get_opaque_trace_state(convention="flax")

    def is_building(self) -> bool:
        """Keras builds a model before its first step."""
        return False

    def unchanged(self, model: Any, function: object) -> AbstractContextManager[Any]:
        """The capturing function runs on a copy of the state."""
        return nullcontext()

    def took_back(self) -> bool:
        """A step of JAX is pure."""
        return True

    def creating_at_once(self) -> AbstractContextManager[Any]:
        """Models are built before their first step."""
        return nullcontext()

    def check_model(self, model: Any) -> None:
        """Whether a step can be captured is known when it is traced."""

    def check_step(self) -> None:
        """Steps are pure."""

    def is_tensor(self, value: object) -> bool:
        """Whether a value is an array of numbers, or stands for one in a trace."""
        return is_numeric(value)

    def kept(self, value: Any) -> Any:
        """Arrays do not change."""
        return value

    def dense(self, value: Any) -> Any:
        """Gradients are dense."""
        return value

    def reader(self, model: Any, mode: str, state: tuple[Any, ...]) -> tuple[Read, Mapping[int, Any]]:
        """Return copies of the values in the state of the step, which the step consumes."""
        values: dict[int, Any] = {}
        for name, found in zip(_STATE[mode], state[0], strict=True):
            variables = model.optimizer.variables if name == "optimizer" else getattr(model, name)
            values.update(zip(map(id, variables), found, strict=True))
        return lambda variable: np.array(values[id(variable)]), values

    def outside_of_graphs(self) -> AbstractContextManager[Any]:
        """Models are built before their first step."""
        return nullcontext()

    def patches(self, collector_of_thread: Callable[[], Collector | None]) -> Iterator[Patch]:
        """The functions that compute gradients return tensors in their auxiliary output."""
        for name in ("value_and_grad", "grad"):
            yield jax, name, functools.partial(_with_taps, collector_of_thread, name)

    def strategy_patches(self, model: Any) -> Iterator[Patch]:
        """JAX has no replicas: a sharded array is one array."""
        return iter(())

    def next_batch(self, model: Any, iterator: Any) -> Any:
        """The next batch."""
        return next(iterator)

    def is_end(self, error: BaseException) -> bool:
        """Whether the iterator has ended."""
        return isinstance(error, StopIteration)

    def call(self, function: Callable[..., Any], state: tuple[Any, ...], batch: Any, mode: str) -> Any:
        """Keras's step functions take the state and an iterator."""
        return function(*state, iter([batch]))

    def for_capture(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """A copy, because a step consumes its state."""
        copies: tuple[Any, ...] = copied(state)
        return copies

    def result(self, returned: Any) -> tuple[Mapping[str, Any] | None, Any]:
        """A step returns its outputs and the next state."""
        whole, state = returned
        if not isinstance(whole, dict) or TAPS not in whole:
            return None, returned
        return whole[TAPS], (whole[OUTPUTS], state)

    def state_after(self, result: Any) -> tuple[Any, ...]:
        """The next state."""
        return (result[1],)

    def with_outputs(self, result: Any, outputs: Any) -> Any:
        """Other outputs with the same state."""
        return outputs, result[1]

    def outputs_of(self, result: Any) -> Any:
        """The outputs in the result of a step."""
        return result[0]

    def progress(self, model: Any) -> object:
        """Steps are pure."""
        return None

    def is_of_step(self, error: Exception) -> bool:
        """Never: a pure step can run again with the same batch."""
        return False

    def has_run(self, model: Any, before: object, state: tuple[Any, ...]) -> bool:
        """Whether the step has consumed its state."""
        return any(getattr(leaf, "is_deleted", bool)() for leaf in jax.tree_util.tree_leaves(state))

    def merged(self, name: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
        """Never called: there are no replicas."""
        return [(name, values[0])]

    def to_array(self, value: Any) -> Any:
        """An array on the host; an array of one accelerator as it is."""
        return host_array(value)


def _with_taps(
    collector_of_thread: Callable[[], Collector | None], name: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    """jax.value_and_grad or jax.grad that hands tensors of the differentiated function to the collector."""
    returns_value = name == "value_and_grad"
    signature = inspect.signature(original)

    @functools.wraps(original)
    def transform(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        collector = collector_of_thread()
        if collector is None:
            plain: Callable[..., Any] = original(fun, *args, **kwargs)
            return plain
        bound = signature.bind(fun, *args, **kwargs)
        has_aux = bool(bound.arguments.get("has_aux", False))

        def traced(*inner: Any, **named: Any) -> Any:
            with collector.level() as taps:
                returned = fun(*inner, **named)
            value, aux = returned if has_aux else (returned, None)
            return value, (aux, taps)

        bound.arguments |= {"fun": traced, "has_aux": True}
        differentiated = original(*bound.args, **bound.kwargs)

        @functools.wraps(fun)
        def call(*inner: Any, **named: Any) -> Any:
            returned = differentiated(*inner, **named)
            if returns_value:
                (value, (aux, taps)), gradients = returned
            else:
                value, (gradients, (aux, taps)) = None, returned
            collector.join(taps)
            if returns_value:
                return ((value, aux) if has_aux else value), gradients
            return (gradients, aux) if has_aux else gradients

        return call

    return transform
