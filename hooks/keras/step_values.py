"""Values of a model and its optimizer before a step: weights, optimizer state, learning rate.

On JAX the arguments of the step hold the values while fit() runs, and the model's variables are out of date:
Backend.reader() returns the values. Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from tdcore.format.layout import TensorKind
from tdcore.hooks.keras.backend import Read
from tdcore.hooks.object_names import WeightView
from tdcore.hooks.plan import Plan
from tdcore.hooks.step_record import StepValue

__all__ = ["learning_rate", "optimizer_values", "optimizers_of", "weight_values"]


def weight_values(view: WeightView, plan: Plan, read: Read, *, trainable_only: bool) -> Iterator[StepValue]:
    """The weights that the plan selects.

    Args:
        view: Names of the model.
        plan: The plan of the step.
        read: Returns the value of a variable.
        trainable_only: Leave out the weights that the forward may have changed already.
    """
    kinds = (TensorKind.WEIGHT, TensorKind.BIAS, TensorKind.CUSTOM)
    if not any(map(plan.may_take, kinds)):
        return
    for variable, name, kind, origin, _ in view.weights():
        spec = None
        if not (trainable_only and kind is TensorKind.CUSTOM):
            spec = plan.spec(name, kind, origin)
        if spec is not None:
            yield StepValue(spec, read(variable))


def optimizers_of(model: Any) -> list[Any]:
    """The optimizers of a model. If it has several, those that have updated weights."""
    found = {id(each): each for each in (model.optimizer, *vars(model).values()) if _is_optimizer(each)}
    return [each for each in found.values() if len(found) == 1 or each.built]


def _is_optimizer(value: object) -> bool:
    return isinstance(value, keras.optimizers.Optimizer)


def optimizer_values(
    optimizer: Any, prefix: str, view: WeightView, plan: Plan, read: Read
) -> Iterator[StepValue]:
    """The state of an optimizer that the plan selects: "optimizer/<slot>/<weight>"."""
    if not plan.may_take(TensorKind.OPTIMIZER_STATE):
        return
    weights = {_slot_prefix(each.variable): each.name for each in view.weights() if each.name}
    origin = type(_inner(optimizer)).__name__
    taken: set[str] = set()
    for variable in optimizer.variables:
        name = _state_name(prefix, variable.name, weights)
        number = sum(1 for each in taken if each == name or each.startswith(f"{name}_"))
        name = f"{name}_{number}" if name in taken else name
        taken.add(name)
        spec = plan.spec(name, TensorKind.OPTIMIZER_STATE, origin)
        if spec is not None:
            yield StepValue(spec, read(variable))


def learning_rate(optimizer: Any, prefix: str, plan: Plan, values: Mapping[int, Any]) -> Iterator[StepValue]:
    """The learning rate of the step and the other numbers of an optimizer: "optimizer/group_0/lr"."""
    if not plan.may_take(TensorKind.HYPERPARAMETER):
        return
    inner = _inner(optimizer)
    origin = type(inner).__name__
    mapping = [(each, values[id(each)]) for each in inner.variables if id(each) in values]
    with keras.StatelessScope(state_mapping=mapping):
        config = inner.get_config() | {"lr": float(keras.ops.convert_to_numpy(inner.learning_rate))}
    for key, value in config.items():
        if type(value) in (int, float) and key != "learning_rate":
            spec = plan.spec(f"{prefix}/group_0/{key}", TensorKind.HYPERPARAMETER, origin)
            if spec is not None:
                yield StepValue(spec, np.float64(value))


def _inner(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def _slot_prefix(variable: Any) -> str:
    """The start of the names of an optimizer's variables for a weight."""
    path = str(getattr(variable, "path", None) or variable.name.replace(":", "_"))
    return f"{path.replace('/', '_')}_"


def _state_name(prefix: str, name: str, weights: Mapping[str, str]) -> str:
    owners = [start for start in weights if name.startswith(start)]
    if not owners:
        return f"{prefix}/{name}"
    owner = max(owners, key=len)
    return f"{prefix}/{name[len(owner) :]}/{weights[owner]}"
