"""Whether a compiled function can run twice, and the block in which it changes no variable.

Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tdcore.hooks.tensorflow.operations import random_operations

__all__ = ["unchanged_variables", "why_unrepeatable"]

# Operations on variables, of control flow and of replicas. Random generators are variables.
_REPEATABLE = (
    "Assert",
    "Assign",
    "Case",
    "Collective",
    "DisableCopyOnRead",
    "If",
    "Nccl",
    "NoOp",
    "PartitionedCall",
    "ReadVariable",
    "Resource",
    "RngReadAndSkip",
    "StatefulPartitionedCall",
    "StatefulStandardNormal",
    "StatefulTruncatedNormal",
    "StatefulUniform",
    "VarHandle",
    "VarIsInitialized",
    "While",
)


def why_unrepeatable(graph: Any) -> str:
    """Why a function cannot run twice without an effect on the training, as a clause; "" if it can."""
    found = random_operations(graph)
    if found:
        return (
            f"it draws random numbers with {', '.join(found)}, whose state belongs to one compiled function; "
            "tf.random.Generator, tf.random.stateless_normal and keras.random can be captured"
        )
    definition = graph.as_graph_def()
    nodes = chain(definition.node, *(each.node_def for each in definition.library.function))
    inner = {each.signature.name for each in definition.library.function}
    kinds = {node.op for node in nodes} - inner
    effects = sorted(kind for kind in kinds if not kind.startswith(_REPEATABLE) and _has_state(kind))
    if effects:
        return (
            f"it contains {', '.join(effects)}, so it cannot run a second time for the capture; move this "
            "out of the function, for instance pass batches in the place of an iterator"
        )
    return ""


def _has_state(kind: str) -> bool:
    definition = op_def_registry.get(kind)
    return definition is None or bool(definition.is_stateful)


@contextmanager
def unchanged_variables(concrete: Any) -> Iterator[None]:
    """Take back what a function changes in its variables within the block."""
    handles = [each for each in concrete.captured_inputs if each.dtype == tf.resource]
    before = [(handle, _value(handle)) for handle in handles]
    try:
        yield
    finally:
        for handle, value in before:
            if value is not None:
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _value(handle: Any) -> Any:
    """The value of a variable by its handle; None for another resource."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=data.shape_and_type[0].dtype)
