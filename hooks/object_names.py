"""Names of a framework's objects, which the framework does not keep unique.

A later object with the name of an earlier one gets a suffix: "x", "x_1". References to the objects are weak.
Threads: those that trace a step, one at a time.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple, Protocol

from tdcore.format.layout import TensorKind

__all__ = ["NamedVariable", "UniqueNames", "WeightView", "unique_name"]


class NamedVariable(NamedTuple):
    """A variable of a model. origin: class of its layer. frozen: it could be trained, and is not."""

    variable: Any
    name: str
    kind: TensorKind
    origin: str
    frozen: bool


class WeightView(Protocol):
    """Names of weights."""

    def weights(self) -> list[NamedVariable]:
        """All weights, as they are now."""


class UniqueNames:
    """Names by object."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._taken: set[str] = set()

    def get(self, named: Any) -> str:
        """The name of an object; "" if it has none."""
        reference, name = self._known.get(id(named), (None, ""))
        return name if reference is not None and reference() is named else ""

    def add(self, named: Any, wanted: str) -> bool:
        """Name an object. Returns whether it had no name before; otherwise it keeps its name."""
        if self.get(named):
            return False
        self._known[id(named)] = weakref.ref(named), unique_name(wanted, self._taken)
        return True


def unique_name(name: str, taken: set[str]) -> str:
    """The name, with a suffix if it is taken. Adds the result to the taken names."""
    found, number = name, 0
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found
