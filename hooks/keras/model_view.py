"""Names of a model's layers and variables. Threads: those that trace a step, one model at a time.

Variables have Keras's path ("dense/kernel", "sequential/dense/bias"), layers their path too. Keras does not
keep paths unique, so a later layer or variable with the path of an earlier one gets a suffix: "x", "x_1".
This object has only weak references to layers.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from tdcore.format.layout import TensorKind
from tdcore.hooks.object_names import NamedVariable, UniqueNames, unique_name

__all__ = ["ModelView", "flat_layers"]


class ModelView:
    """Names of one model."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._layers = UniqueNames()
        self._variables: dict[int, str] = {}
        self._variable_names: set[str] = set()
        self._origins: dict[str, str] = {}  # names of weights -> class of the layer
        self.classes: set[str] = set()  # "<class>_output" and "<class>_input"

    def layer_name(self, layer: Any) -> str:
        """The name of a layer; a layer that the model does not list is named at its first call."""
        if not self._layers.get(layer):
            model = self._model()
            for each in flat_layers(model) if model is not None else ():
                if getattr(each, "built", True) or each is layer:
                    self._name_layer(each)
            self._name_layer(layer)
        return self._layers.get(layer)

    def _name_layer(self, layer: Any) -> None:
        if self._layers.add(layer, str(getattr(layer, "path", None) or layer.name)):
            origin = type(layer).__name__
            self.classes |= {f"{origin}_output", f"{origin}_input"}

    def variable_name(self, variable: Any) -> str:
        """The name of a Keras variable, or of the backend's variable in it; "" for others."""
        return self._variables.get(id(variable), "")

    def weight_of(self, variable: Any) -> tuple[str, str]:
        """Name of a weight, and the class of its layer; the name is "" for other variables."""
        if not self.variable_name(variable):
            self.weights()
        name = self.variable_name(variable)
        return name, self._origins.get(name, "")

    def weights(self) -> list[NamedVariable]:
        """All weights of the model, as they are now: without states of metrics and random generators."""
        model = self._model()
        if model is None:
            return []
        origins: dict[int, str] = {}
        trainable: set[int] = set()
        for layer in flat_layers(model):
            own = getattr(layer, "_trainable_variables", None)
            trainable.update(map(id, own or ()))
            for variable in (*(own or ()), *(getattr(layer, "_non_trainable_variables", None) or ())):
                origins.setdefault(id(variable), type(layer).__name__)
        found = []
        for variable in model.weights:
            if id(variable) not in self._variables:
                name = unique_name(str(variable.path), self._variable_names)
                self._variables[id(variable)] = name
                self._name_backend_variable(variable, name)
            may_train = id(variable) in trainable or variable.trainable
            kind = TensorKind.CUSTOM
            if may_train:
                kind = TensorKind.BIAS if "bias" in variable.name.lower() else TensorKind.WEIGHT
            origin = self._origins[self._variables[id(variable)]] = origins.get(id(variable), "")
            found.append(
                NamedVariable(
                    variable,
                    self._variables[id(variable)],
                    kind,
                    origin,
                    may_train and not variable.trainable,
                )
            )
        return found

    def _name_backend_variable(self, variable: Any, name: str) -> None:
        inner = getattr(variable, "_value", None)
        if inner is not None and hasattr(inner, "assign"):  # a variable of TensorFlow
            self._variables[id(inner)] = name


def flat_layers(model: Any) -> Iterator[Any]:
    """The model and all layers below it, each once."""
    pending, seen = [model], set()
    while pending:
        layer = pending.pop(0)
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield layer
        inner = getattr(layer, "_layers", None)
        pending[:0] = list(inner) if inner else []
