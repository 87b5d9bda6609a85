"""Gradients, state and numbers of an optimizer around an update: of Keras, or any other.

Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import Plan
from tdcore.hooks.step_record import StepValue
from tdcore.hooks.tensorflow import keras_parts
from tdcore.hooks.tensorflow.variables import VariableNames

__all__ = ["is_keras_optimizer", "optimizer_step_values", "report_update"]


def is_keras_optimizer(optimizer: object) -> bool:
    """Whether an optimizer is of Keras 3."""
    keras = keras_parts.keras_of_script()
    return keras is not None and isinstance(optimizer, keras.optimizers.Optimizer)


def report_update(collector: Any, optimizer: Any, gradients: Sequence[Any], variables: Any) -> None:
    """Report the gradients that an optimizer was given to a collector."""
    if is_keras_optimizer(optimizer):
        keras_parts.report_update(collector, optimizer, gradients, variables)
    else:
        collector.gradients(optimizer, gradients, variables, None)


def optimizer_step_values(
    optimizer: Any, number: int, names: VariableNames, plan: Plan, read: Callable[[Any], Any]
) -> Iterator[StepValue]:
    """State and numbers of an optimizer before its update.

    Args:
        optimizer: The optimizer.
        number: Its number, from 0 on.
        names: Names of the weights.
        plan: The plan of the step.
        read: Returns the value of a variable before the update, or None.
    """
    prefix = f"optimizer_{number}" if number else "optimizer"
    if is_keras_optimizer(optimizer):
        yield from keras_parts.optimizer_step_values(optimizer, prefix, names, plan, read)
        return
    origin = type(optimizer).__name__
    variables = getattr(optimizer, "variables", ())
    for variable in variables() if callable(variables) else variables:
        name = f"{prefix}/{variable.name.partition(':')[0]}"
        spec = plan.spec(name, TensorKind.OPTIMIZER_STATE, origin)
        value = None if spec is None else read(variable)
        if spec is not None and value is not None:
            yield StepValue(spec, value)
    rate = getattr(optimizer, "learning_rate", getattr(optimizer, "_lr", None))
    spec = plan.spec(f"{prefix}/group_0/lr", TensorKind.HYPERPARAMETER, origin)
    if spec is not None and isinstance(rate, (int, float)):
        yield StepValue(spec, np.float64(rate))
