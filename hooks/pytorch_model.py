"""What a PyTorch model consists of, and what its tensors are called.

    <Root>_<parameter path>              Net_conv1.weight        (Root: class name of the registered module)
    gradient/<Root>_<parameter path>     gradient/Net_conv1.weight
    <module path>_output_<i>, _input_<i> conv1_output_0; the root itself goes by its class name: Net_output_0

Outputs and inputs may be nested: elements of tuples and lists are numbered in order through all levels (an
element that is no tensor takes a number too, so that names do not move when it is None), elements of
mappings and dataclasses go by their key: "Net_output_logits", "Net_output_hidden.0". Nothing here keeps a
model alive: parameters are read from the modules each time. Threads: pure functions of their arguments; the
training thread changes models.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from tdcore.layout import TensorKind

__all__ = ["ModelView", "leaves", "read_structure"]

_MAX_DEPTH = 8
_MAX_LEAVES = 1024


class Parameter(NamedTuple):
    """One parameter. name: as captured. origin: class of the module that holds it."""

    name: str
    kind: TensorKind
    origin: str


class Module(NamedTuple):
    """One module. name: its prefix in tensor names. origin: its class."""

    module: weakref.ref[nn.Module]
    name: str
    origin: str


def read_structure(root: nn.Module) -> tuple[list[object], list[nn.Parameter | None]]:
    """A signature of the model's structure, and its parameter slots in the same order each time.

    Two readings with equal signatures have the same modules and parameters under the same names. A shared
    module appears once; a tied parameter as often as it is held. About 0.3 us per module and 0.1 us per
    parameter.
    """
    signature: list[object] = []
    slots: list[nn.Parameter | None] = []
    stack: list[nn.Module | None] = [root]
    seen: set[int] = set()
    while stack:
        module = stack.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        signature.append(type(module))
        if module._parameters:
            signature.extend(module._parameters.keys())
            slots.extend(module._parameters.values())
        if module._modules:
            signature.extend(module._modules.keys())
            stack.extend(reversed(module._modules.values()))
    return signature, slots


class ModelView:
    """Names for a model as it was when read. Compare `signature` with a new reading before using it."""

    def __init__(self, root: nn.Module) -> None:
        self.root_name = type(root).__name__
        self.signature, slots = read_structure(root)
        self.modules: list[Module] = []
        self.aliases: dict[str, list[str]] = {}  # name of a tied parameter -> its other names
        self._positions: list[int] = []  # of the slots that are parameters, each once
        self.parameters: list[Parameter] = []
        self._read(root, slots)
        self._same = self._tied(slots)
        self._references = [
            weakref.ref(slot)
            for slot in (slots[position] for position in self._positions)
            if slot is not None
        ]

    def _read(self, root: nn.Module, slots: list[nn.Parameter | None]) -> None:
        """Walks in the order of read_structure()."""
        first: dict[int, str] = {}
        position = 0
        stack: list[tuple[nn.Module | None, str]] = [(root, "")]
        seen: set[int] = set()
        while stack:
            module, path = stack.pop()
            if module is None or id(module) in seen:
                continue
            seen.add(id(module))
            origin = type(module).__name__
            prefix = f"{path}." if path else ""
            self.modules.append(Module(weakref.ref(module), path or self.root_name, origin))
            for key in module._parameters.keys():  # noqa: SIM118 -- a scripted module's is no dict
                parameter = slots[position]
                name = f"{self.root_name}_{prefix}{key}"
                if parameter is not None and first.setdefault(id(parameter), name) == name:
                    kind = TensorKind.BIAS if "bias" in key.lower() else TensorKind.WEIGHT
                    self.parameters.append(Parameter(name, kind, origin))
                    self._positions.append(position)
                elif parameter is not None:
                    self.aliases.setdefault(first[id(parameter)], []).append(name)
                position += 1
            stack.extend((child, prefix + key) for key, child in reversed(module._modules.items()))

    def _tied(self, slots: list[nn.Parameter | None]) -> list[tuple[int, int]]:
        """Pairs of slots that held the same parameter."""
        first: dict[int, int] = {}
        return [
            (first.setdefault(id(parameter), position), position)
            for position, parameter in enumerate(slots)
            if parameter is not None and first.setdefault(id(parameter), position) != position
        ]

    def matches(self, root: nn.Module) -> bool:
        """Whether the model still has this structure. Renews the references to its parameters."""
        signature, slots = read_structure(root)
        if signature != self.signature or any(slots[one] is not slots[two] for one, two in self._same):
            return False
        found = [slots[position] for position in self._positions]
        if any(parameter is None for parameter in found):
            return False
        self._references = [weakref.ref(parameter) for parameter in found if parameter is not None]
        return True

    def held_parameters(self) -> list[nn.Parameter] | None:
        """The parameters as of the last matches(), in the order of `parameters`; None when some are gone."""
        found = [reference() for reference in self._references]
        for parameter in found:
            if parameter is None:
                return None
        return found  # type: ignore[return-value]  # checked just above


def leaves(value: object) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in an output or input, each with the end of its name. See the module's text."""
    if isinstance(value, torch.Tensor):
        yield "0", value
        return
    budget = [0, _MAX_LEAVES]  # next number, leaves left
    yield from _leaves(value, "", budget, _MAX_DEPTH)


def _leaves(value: object, path: str, budget: list[int], depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, (tuple, list, Mapping)) or dataclasses.is_dataclass(value):
        if depth > 0:
            for key, item in _items(value):
                end = f"{path}.{key}" if path else ("" if isinstance(key, int) else key)
                yield from _leaves(item, end, budget, depth - 1)
        return
    end = path or str(budget[0])
    if not path:
        budget[0] += 1
    budget[1] -= 1
    if isinstance(value, torch.Tensor) and budget[1] >= 0:
        yield end, value


def _items(value: Any) -> Iterator[tuple[int | str, object]]:
    if isinstance(value, Mapping):
        return ((str(key), item) for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return iter(enumerate(value))
    return ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
