"""Operations of TensorFlow that hooks need: graphs, reading of variables, values of replicas.

The hook for Keras on TensorFlow uses them too. Threads: the training thread; replicas of a strategy trace in
threads of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = [
    "TensorFlowOperations",
    "merged",
    "plain_variable",
    "random_operations",
    "read_variable",
    "to_array",
    "tuples_of_replicas",
]

# Their state belongs to one compiled function.
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
_NO_NUMBERS = frozenset({tf.string, tf.variant, tf.resource})


class TensorFlowOperations:
    """See step_collector.TraceOperations."""

    def trace(self) -> object:
        """The graph of the thread; None while operations are executed at once."""
        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def is_building(self) -> bool:
        """Whether Keras computes shapes in a graph of its own."""
        graph = self.trace()
        return graph is not None and str(getattr(graph, "name", "")).startswith("scratch_graph")

    def is_tensor(self, value: object) -> bool:
        """Whether a value is a dense tensor of numbers."""
        return isinstance(value, tf.Tensor) and value.dtype not in _NO_NUMBERS

    def kept(self, value: Any) -> Any:
        """Tensors do not change."""
        return value

    def dense(self, value: Any) -> Any:
        """The tensor; tf.IndexedSlices with their sums."""
        return tf.convert_to_tensor(value)


def random_operations(graph: Any) -> list[str]:
    """Names of the operations in a graph whose random numbers belong to one compiled function."""
    definition = graph.as_graph_def()
    nodes = chain(definition.node, *(each.node_def for each in definition.library.function))
    return sorted({node.op for node in nodes} & _RANDOM)


def plain_variable(variable: Any) -> Any:
    """The tf.Variable of a Keras variable, and the whole of a replica's part; other variables as they are."""
    if not isinstance(variable, tf.Variable):
        variable = getattr(variable, "_value", variable)
    container = getattr(variable, "_distributed_container", None)
    whole = container() if callable(container) else None
    return variable if whole is None else whole


def read_variable(variable: Any) -> Any:
    """The value of a variable of TensorFlow or Keras, which does not change with the variable."""
    return plain_variable(variable).read_value()


def merged(name: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
    """Names and values of a tensor that every replica has: the whole one, then those of the replicas.

    Gradients of replicas are added, batches are joined, and equal numbers are one number.
    """
    arrays = list(map(np.asarray, values))
    if name.startswith("gradient/"):
        whole: Any = functools.reduce(np.add, arrays)
    elif arrays[0].ndim:
        whole = np.concatenate(arrays)
    else:
        whole = arrays[0] if all(np.array_equal(each, arrays[0]) for each in arrays) else None
    parts = [(f"{name}/replica_{number}", each) for number, each in enumerate(arrays)]
    return parts if whole is None else [(name, whole), *parts]


def tuples_of_replicas(strategy: Any, taps: Any) -> dict[str, tuple[Any, ...]]:
    """The tensors of all replicas as tuples, which no strategy reduces."""
    return {key: tuple(strategy.experimental_local_results(value)) for key, value in taps.items()}


def to_array(value: Any) -> Any:
    """An array that shares the memory of a tensor on the host; another tensor as it is."""
    return np.asarray(value) if "CPU" in (getattr(value, "device", "") or "CPU") else value
