"""Keras on TensorFlow: graphs, tf.function with and without XLA, eager steps, and strategies with replicas.

Threads: the training thread; a strategy's replicas trace in threads of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import keras
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
from tdcore.hooks.tensorflow.repetition import VariableSnapshot, side_effects

if TYPE_CHECKING:
    from tdcore.hooks.keras.collector import Collector

__all__ = ["TensorFlowBackend"]


_ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)


class TensorFlowBackend(TensorFlowOperations, StatefulBackend):
    """See backend.Backend."""

    name = "tensorflow"

    def __init__(self) -> None:
        self._handles: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._running: tuple[Any, VariableSnapshot] | None = None  # a capturing function that runs
        self._took_back = False

    @contextmanager
    def unchanged(self, model: Any, function: Any) -> Iterator[None]:
        """Read the variables before the function runs. If it is traced first, check_step() reads them."""
        self._took_back = False
        if not _can_run_twice(model):
            yield
            return
        snapshot = VariableSnapshot()
        snapshot.add(self._handles.get(function, ()))
        self._running = function, snapshot
        try:
            yield
        finally:
            self._running = None
            self._took_back = function in self._handles
            snapshot.restore()

    def took_back(self) -> bool:
        """Whether the last capturing function was a graph of a single replica."""
        return self._took_back

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
        graph: Any = self.trace()
        if graph is None:
            return
        found = random_operations(graph)
        if found:
            raise UncapturableStepError(
                f"the step draws random numbers with {', '.join(found)} of "
                "tf.random, whose state belongs to one compiled function; keras.random and random generators "
                "can be captured"
            )
        if self._running is None:
            return
        effects = side_effects(graph)
        if effects:
            raise UncapturableStepError(
                f"the step contains {', '.join(effects)}, so it cannot run a second time for the capture"
            )
        function, snapshot = self._running
        self._handles.setdefault(function, []).extend(graph.external_captures)  # of all its traces
        snapshot.add(graph.external_captures)

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
        """The next element. A graph takes its batch from an iterator: with several replicas, from Keras's."""
        in_graph = isinstance(iterator, _ITERATORS) and not model.run_eagerly
        if not in_graph or model.steps_per_execution > 1:
            return next(iterator)
        return _OneBatch(next(iterator), iterator.element_spec) if _can_run_twice(model) else iterator

    def is_end(self, error: BaseException) -> bool:
        """Iterators of Python and of TensorFlow have different errors."""
        return isinstance(error, (StopIteration, tf.errors.OutOfRangeError))

    def call(self, function: Callable[..., Any], state: tuple[Any, ...], batch: Any, mode: str) -> Any:
        """Keras's step functions take an iterator, or for predictions a list of batches."""
        if isinstance(batch, _OneBatch):
            return function(batch.argument())
        return function(batch if isinstance(batch, _ITERATORS) else [batch])

    def is_of_step(self, error: Exception) -> bool:
        """Whether an operation failed."""
        failed = isinstance(error, tf.errors.OpError) and not self._took_back
        return failed and not isinstance(error, tf.errors.ResourceExhaustedError)

    def merged(self, name: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
        """See operations.merged()."""
        return merged(name, values)

    def to_array(self, value: Any) -> Any:
        """See operations.to_array()."""
        return to_array(value)


def _can_run_twice(model: Any) -> bool:
    """Whether a step is one function of Keras, with a batch that can be used twice."""
    makers = [f"make_{mode}_function" for mode in ("train", "test", "predict")]
    return (
        not model.run_eagerly
        and model.distribute_strategy.num_replicas_in_sync == 1
        and all(getattr(type(model), name) is getattr(keras.Model, name) for name in makers)
    )


class _OneBatch:
    """A batch for functions that take an iterator. spec: of the elements of Keras's iterator.

    With another spec, for instance with the size of this batch, tf.function would trace the function again.
    """

    def __init__(self, data: Any, spec: Any) -> None:
        self._data = data
        self._spec = spec
        self._argument: Any = None

    def argument(self) -> Any:
        """An iterator that returns this batch at every call."""
        if self._argument is None:
            try:
                self._argument = self._iterator()
            except Exception:  # Keras also takes a list, for which it traces the function once more
                self._argument = [self._data]
        return self._argument

    def _iterator(self) -> Any:
        options = tf.data.Options()
        options.experimental_optimization.apply_default_optimizations = False
        options.autotune.enabled = False
        dataset = tf.data.Dataset.from_tensors(self._data).repeat().with_options(options)
        return iter(_WithSpec(dataset, self._spec))


class _WithSpec(tf.data.Dataset):  # type: ignore[misc]  # a class without types
    """A data set with a more general spec."""

    def __init__(self, dataset: Any, spec: Any) -> None:
        self._dataset = dataset
        self._spec = spec
        super().__init__(dataset._variant_tensor)

    @property
    def element_spec(self) -> Any:
        """The spec of the elements."""
        return self._spec

    def _inputs(self) -> list[Any]:
        return [self._dataset]


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
