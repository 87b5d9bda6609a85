"""The order of the model: weights and biases as they are defined, module outputs as they are executed.

A gradient is at the place of its parameter. Hooks record the gradients of a step in the order of the backward
pass, or in the order of the parameters; the order is detected from the places of parameters, or else from the
numbers in names. A gradient whose parameter was not saved follows the gradient before it. Equal places are
sorted by name, numbers by their value ("layer2" before "layer10"). Pure functions, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

__all__ = ["in_model_order", "natural_key"]

_PREFIX = "gradient/"
# Groups of kinds, in order; kinds that are not listed come last.
_GROUPS = {
    kind: group
    for group, kinds in enumerate(
        (("loss",), ("metric",), ("weight", "bias"), ("gradient",), ("input", "output"), ("output_gradient",))
    )
    for kind in kinds
}
_NUMBER = re.compile(r"(\d{1,18})", re.ASCII)

Place = tuple[float, int]


class Entry(Protocol):
    """A tensor."""

    @property
    def name(self) -> str:
        """Name of the tensor."""
        ...

    @property
    def kind(self) -> str:
        """Kind of the tensor."""
        ...


AnyEntry = TypeVar("AnyEntry", bound=Entry)


def in_model_order(entries: Sequence[AnyEntry], execution: Sequence[int]) -> list[AnyEntry]:
    """The tensors in the order of the model. execution: number of each tensor in the order of its step."""
    places: dict[str, Place] = {
        each.name: (float(number), 0) for each, number in zip(entries, execution, strict=True)
    }
    for kind in ("gradient", "output_gradient"):
        names = [each.name for each in entries if each.kind == kind]
        places.update(_gradient_places(names, places))

    def key(entry: AnyEntry) -> tuple[object, ...]:
        group = _GROUPS.get(entry.kind, len(_GROUPS))
        rest = entry.kind if group == len(_GROUPS) else ""
        return (group, rest, places[entry.name], natural_key(entry.name))

    return sorted(entries, key=key)


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that orders numbers in names by their value."""
    parts = _NUMBER.split(name)
    return tuple((0, int(part), "") if at % 2 else (1, 0, part) for at, part in enumerate(parts))


def _gradient_places(names: Sequence[str], places: dict[str, Place]) -> dict[str, Place]:
    """The place of each gradient: that of its parameter, else after the gradient before it."""
    parameters = {
        name: places[name.removeprefix(_PREFIX)][0]
        for name in names
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) in places
    }
    natural = {name: rank for rank, name in enumerate(sorted(names, key=natural_key))}
    known = parameters if len(parameters) > 1 else natural
    backward = _falls([places[name][0] for name in known], list(known.values()))
    found: dict[str, Place] = {}
    last: Place = (-np.inf, 0)
    for name in sorted(names, key=lambda each: (places[each][0], natural[each]), reverse=backward):
        last = (parameters[name], 0) if name in parameters else (last[0], last[1] + 1)
        found[name] = last
    return found


def _falls(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether the second numbers fall where the first ones rise."""
    one, other = (np.asarray(each, dtype=np.float64) for each in (first, second))
    if len(one) < 2:
        return False
    return bool(np.sum((one - one.mean()) * (other - other.mean())) < 0)
