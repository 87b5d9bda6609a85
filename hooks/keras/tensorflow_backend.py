"""Keras on TensorFlow: graphs, tf.function with and without XLA, eager steps, and strategies with replicas.

Threads: the training thread; a strategy's replicas trace in threads of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tdcore.hooks.keras.backend import TAPS, Patch, Read, StatefulBackend, UncapturableStepError

if TYPE_CHECKING:
    from tdcore.hooks.keras.collector import Collector

__all__ = ["TensorFlowBackend"]


_ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)
_RANDOM = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)


class TensorFlowBackend(StatefulBackend):
    """See backend.Backend."""

    name = "tensorflow"

    def trace(self) -> object:
        """The graph of the thread; None while operations are executed at once."""
        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def is_building(self) -> bool:
        """Whether Keras computes shapes in a graph of its own."""
        graph = self.trace()
        return graph is not None and str(getattr(graph, "name", "")).startswith("scratch_graph")

    def creating_at_once(self) -> AbstractContextManager[Any]:
        """tf.function initializes variables only after a trace without an error."""
        if self.trace() is None or tf.distribute.get_strategy().num_replicas_in_sync > 1:
            return nullcontext()
        scope: AbstractContextManager[Any] = tf.variable_creator_scope(_create_at_once)
        return scope

    def check_model(self, model: Any) -> None:
        """Whether a step can be captured is known when it is traced."""

    def check_step(self) -> None:
        """Each compiled function has random numbers of its own for the operations of tf.random."""
        graph = self.trace()
        if graph is None:
            return
        definition = graph.as_graph_def()  # type: ignore[attr-defined]  # a tf.Graph
        nodes = chain(definition.node, *(each.node_def for each in definition.library.function))
        found = sorted({node.op for node in nodes} & _RANDOM)
        if found:
            raise UncapturableStepError(
                f"the step draws random numbers with {', '.join(found)} of "
                "tf.random, whose state belongs to one compiled function; keras.random and random generators "
                "can be captured"
            )

    def is_tensor(self, value: object) -> bool:
        """Whether a value is a dense tensor of numbers."""
        return isinstance(value, tf.Tensor) and value.dtype not in (tf.string, tf.variant, tf.resource)

    def kept(self, value: Any) -> Any:
        """Tensors do not change."""
        return value

    def dense(self, value: Any) -> Any:
        """The tensor; tf.IndexedSlices with their sums."""
        return tf.convert_to_tensor(value)

    def reader(self, model: Any, mode: str, state: tuple[Any, ...]) -> tuple[Read, Mapping[int, Any]]:
        """Variables hold their values. TensorFlow copies a value that was read when its variable changes."""
        return _read, {}

    def outside_of_graphs(self) -> AbstractContextManager[Any]:
        """See tf.init_scope."""
        scope: AbstractContextManager[Any] = tf.init_scope()
        return scope

    def patches(self, collector_of_thread: Callable[[], Collector | None]) -> Iterator[Patch]:
        """TensorFlow needs none."""
        return iter(())

    def strategy_patches(self, model: Any) -> Iterator[Patch]:
        """Taps of replicas leave the strategy as tuples, which Keras does not average."""
        strategy = model.distribute_strategy
        if strategy.num_replicas_in_sync > 1:
            yield strategy, "run", lambda run: _with_replicas_apart(strategy, run)

    def next_batch(self, model: Any, iterator: Any) -> Any:
        """A graph takes its batch itself; otherwise the next element of a data set or a generator."""
        in_graph = isinstance(iterator, _ITERATORS) and not model.run_eagerly
        return iterator if in_graph and model.steps_per_execution == 1 else next(iterator)

    def is_end(self, error: BaseException) -> bool:
        """Iterators of Python and of TensorFlow have different errors."""
        return isinstance(error, (StopIteration, tf.errors.OutOfRangeError))

    def call(self, function: Callable[..., Any], state: tuple[Any, ...], batch: Any, mode: str) -> Any:
        """Keras's step functions take an iterator, or for predictions a list of batches."""
        return function(batch if isinstance(batch, _ITERATORS) else [batch])

    def is_of_step(self, error: Exception) -> bool:
        """Whether an operation failed."""
        return isinstance(error, tf.errors.OpError) and not isinstance(
            error, tf.errors.ResourceExhaustedError
        )

    def merged(self, name: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
        """Gradients of replicas are added, batches are joined, and equal numbers are one number."""
        arrays = list(map(np.asarray, values))
        if name.startswith("gradient/"):
            whole: Any = functools.reduce(np.add, arrays)
        elif arrays[0].ndim:
            whole = np.concatenate(arrays)
        else:
            whole = arrays[0] if all(np.array_equal(each, arrays[0]) for each in arrays) else None
        parts = [(f"{name}/replica_{number}", each) for number, each in enumerate(arrays)]
        return parts if whole is None else [(name, whole), *parts]

    def to_array(self, value: Any) -> Any:
        """An array that shares the memory of a tensor on the host; another tensor as it is."""
        return np.asarray(value) if "CPU" in (getattr(value, "device", "") or "CPU") else value


def _read(variable: Any) -> Any:
    inner = getattr(variable, "_value", variable.value)
    return inner.read_value() if hasattr(inner, "read_value") else inner


def _create_at_once(next_creator: Callable[..., Any], **settings: Any) -> Any:
    if not callable(settings.get("initial_value")):
        return next_creator(**settings)
    with tf.init_scope():
        return next_creator(**settings)


def _with_replicas_apart(strategy: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    def run_and_split(*args: Any, **kwargs: Any) -> Any:
        returned = run(*args, **kwargs)
        if isinstance(returned, dict) and TAPS in returned:
            taps = returned[TAPS].items()
            apart = {key: tuple(strategy.experimental_local_results(value)) for key, value in taps}
            return {**returned, TAPS: apart}
        return returned

    return run_and_split
