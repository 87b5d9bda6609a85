"""Whether a compiled function can run twice, and the block in which it changes no variable.

Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tdcore.hooks.tensorflow.operations import random_operations

__all__ = ["VariableSnapshot", "side_effects", "unchanged_variables", "why_unrepeatable"]

# Operations on variables, of control flow and of replicas, and those whose state ends with the call. Random
# generators are variables.
_REPEATABLE = (
    "Assert",
    "Assign",
    "Case",
    "Collective",
    "CudnnRNN",
    "DisableCopyOnRead",
    "HashTable",
    "If",
    "LookupTableFind",
    "LookupTableSize",
    "Nccl",
    "NoOp",
    "PartitionedCall",
    "ReadVariable",
    "Resource",
    "RngReadAndSkip",
    "Stack",
    "StatefulPartitionedCall",
    "StatefulStandardNormal",
    "StatefulTruncatedNormal",
    "StatefulUniform",
    "TensorArray",
    "VarHandle",
    "VarIsInitialized",
    "VariableShape",
    "While",
)


def why_unrepeatable(graph: Any) -> str:
    """Return a clause with the reason why a second run would affect the training; "" if it would not."""
    found = random_operations(graph)
    if found:
        return (
            f"it draws random numbers with {', '.join(found)}, whose state belongs to one compiled function; "
            "tf.random.Generator, tf.random.stateless_normal and keras.random can be captured"
        )
    effects = side_effects(graph)
    if effects:
        return (
            f"it contains {', '.join(effects)}, so it cannot run a second time for the capture; move this "
            "out of the function, for instance pass batches in the place of an iterator"
        )
    return ""


def side_effects(graph: Any) -> list[str]:
    """Names of the operations in a graph that have other effects than changes of variables."""
    definition = graph.as_graph_def()
    nodes = chain(definition.node, *(each.node_def for each in definition.library.function))
    inner = {each.signature.name for each in definition.library.function}
    kinds = {node.op for node in nodes} - inner
    return sorted(kind for kind in kinds if not kind.startswith(_REPEATABLE) and _has_state(kind))


def _has_state(kind: str) -> bool:
    definition = op_def_registry.get(kind)
    return definition is None or bool(definition.is_stateful)


@contextmanager
def unchanged_variables(concrete: Any) -> Iterator[None]:
    """Take back what a function changes in its variables within the block."""
    snapshot = VariableSnapshot()
    snapshot.add(concrete.captured_inputs)
    try:
        yield
    finally:
        snapshot.restore()


class VariableSnapshot:
    """Values of variables before a function runs."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Any, Any]] = {}  # id() of the handle -> handle, value

    def add(self, tensors: Iterable[Any]) -> None:
        """Read the variables whose handles are among the tensors, also while a function is traced."""
        with tf.init_scope():
            for handle in tensors:
                if handle.dtype != tf.resource or id(handle) in self._before:
                    continue
                value = _value(handle)
                if value is not None:
                    self._before[id(handle)] = handle, value

    def restore(self) -> None:
        """Set the variables to their values."""
        for handle, value in self._before.values():
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _value(handle: Any) -> Any:
    """The value of a variable by its handle; None for another resource."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=data.shape_and_type[0].dtype)
