"""VariableNames: names of variables, layers and modules of a training.

Keras variables have Keras's path ("dense/kernel"). Other variables have their name ("w"), or with
Hook.register_model() their place in the tf.Module ("encoder/w"). All are referred to weakly.
Threads: those that trace a step, one at a time.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import tensorflow as tf

from tdcore.format.layout import TensorKind
from tdcore.hooks.object_names import NamedVariable, UniqueNames
from tdcore.hooks.tensorflow.operations import plain_variable

__all__ = ["VariableNames"]


class _Entry(NamedTuple):
    """A variable. given: that of Keras or of TensorFlow. may_train: whether it was created as trainable."""

    plain: weakref.ref[Any]
    given: weakref.ref[Any]
    origin: str
    may_train: bool


class VariableNames:
    """Names of everything that a hook has met."""

    def __init__(self) -> None:
        self.classes: set[str] = set()  # "<class>_output" and "<class>_input"
        self._names = UniqueNames()  # of plain variables
        self._entries: dict[int, _Entry] = {}  # by id() of the plain variable
        self._modules = UniqueNames()

    def add(self, variable: Any, origin: str = "", name: str = "", *, may_train: bool | None = None) -> None:
        """Name a variable, unless it has a name.

        Args:
            variable: A variable of TensorFlow or Keras. Other values are left out.
            origin: Class of its layer.
            name: Its name; "": the name that it has itself.
            may_train: Whether it was made to be trained; None: whether it can be trained now.
        """
        plain = plain_variable(variable)
        if not isinstance(plain, tf.Variable):
            return
        known = self._entries.get(id(plain))
        if known is not None and known.plain() is plain and (known.origin or not origin):
            return
        own = str(getattr(variable, "path", None) or plain.name.partition(":")[0])
        self._names.add(plain, name or own)
        can_train = bool(variable.trainable) if may_train is None else may_train
        self._entries[id(plain)] = _Entry(weakref.ref(plain), weakref.ref(variable), origin, can_train)

    def add_layer(self, layer: Any) -> None:
        """Name a layer of Keras and its own weights."""
        if self._modules.add(layer, str(getattr(layer, "path", None) or layer.name)):
            self._add_class(layer)
        origin = type(layer).__name__
        for variable in getattr(layer, "_trainable_variables", None) or ():
            self.add(variable, origin, may_train=True)
        for variable in getattr(layer, "_non_trainable_variables", None) or ():
            self.add(variable, origin, may_train=bool(variable.trainable))

    def add_module(self, module: Any) -> None:
        """Name the parts and variables of a tf.Module by their places in it."""
        if self._modules.add(module, str(module.name)):
            self._add_class(module)
        for path, part in module._flatten(predicate=_is_module, with_path=True):
            if self._modules.add(part, "/".join(map(str, path))):
                self._add_class(part)
        for path, variable in module._flatten(predicate=_is_variable, with_path=True):
            owner: Any = module
            for each in path[:-1]:
                inner = (
                    owner[each]
                    if isinstance(owner, (list, tuple, dict))
                    else getattr(owner, str(each), owner)
                )
                owner = inner
            origin = type(owner if isinstance(owner, tf.Module) else module).__name__
            self.add(variable, origin, "/".join(map(str, path)))

    def layer_name(self, layer: Any) -> str:
        """The name of a layer or module."""
        if not self._modules.get(layer):
            self.add_layer(layer)
        return self._modules.get(layer)

    def weight_of(self, variable: Any) -> tuple[str, str]:
        """Name of a variable and the class of its layer; the name is "" for other values."""
        self.add(variable)
        plain = plain_variable(variable)
        entry = self._entries.get(id(plain))
        return self._names.get(plain), "" if entry is None else entry.origin

    def weights(self) -> list[NamedVariable]:
        """All variables that have a name."""
        found = []
        for key, entry in list(self._entries.items()):
            plain, variable = entry.plain(), entry.given()
            if plain is None or variable is None:
                del self._entries[key]
                continue
            name = self._names.get(plain)
            kind = TensorKind.CUSTOM
            if entry.may_train:
                last = name.rpartition("/")[2].lower()
                kind = TensorKind.BIAS if last == "b" or "bias" in last else TensorKind.WEIGHT
            frozen = entry.may_train and not variable.trainable
            found.append(NamedVariable(variable, name, kind, entry.origin, frozen))
        return found

    def _add_class(self, layer: Any) -> None:
        origin = type(layer).__name__
        self.classes |= {f"{origin}_output", f"{origin}_input"}


def _is_module(value: object) -> bool:
    return isinstance(value, tf.Module)


def _is_variable(value: object) -> bool:
    return isinstance(value, tf.Variable)
