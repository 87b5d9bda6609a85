"""Keras on TensorFlow: graphs, tf.function with and without XLA, eager steps, and strategies with replicas.

Threads: the training thread; a strategy's replicas trace in threads of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tdcore.hooks.interception import Patch
from tdcore.hooks.keras.backend import TAPS, Read, StatefulBackend, UncapturableStepError
from tdcore.hooks.tensorflow.operations import (
    TensorFlowOperations,
    merged,
    random_operations,
    read_variable,
    to_array,
    tuples_of_replicas,
)

if TYPE_CHECKING:
    from tdcore.hooks.keras.collector import Collector

__all__ = ["TensorFlowBackend"]


_ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)


class TensorFlowBackend(TensorFlowOperations, StatefulBackend):
    """See backend.Backend."""

    name = "tensorflow"

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
        found = random_operations(graph)
        if found:
            raise UncapturableStepError(
                f"the step draws random numbers with {', '.join(found)} of "
                "tf.random, whose state belongs to one compiled function; keras.random and random generators "
                "can be captured"
            )

    def reader(self, model: Any, mode: str, state: tuple[Any, ...]) -> tuple[Read, Mapping[int, Any]]:
        """Variables hold their values. TensorFlow copies a value that was read when its variable changes."""
        return read_variable, {}

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
        """See operations.merged()."""
        return merged(name, values)

    def to_array(self, value: Any) -> Any:
        """See operations.to_array()."""
        return to_array(value)


def _create_at_once(next_creator: Callable[..., Any], **settings: Any) -> Any:
    if not callable(settings.get("initial_value")):
        return next_creator(**settings)
    with tf.init_scope():
        return next_creator(**settings)


def _with_replicas_apart(strategy: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    def run_and_split(*args: Any, **kwargs: Any) -> Any:
        returned = run(*args, **kwargs)
        if isinstance(returned, dict) and TAPS in returned:
            return {**returned, TAPS: tuples_of_replicas(strategy, returned[TAPS])}
        return returned

    return run_and_split
