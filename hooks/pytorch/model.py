"""What a PyTorch model consists of, and what its tensors are called.

    <Root>_<parameter path>              Net_conv1.weight        (Root: class name of the registered module)
    gradient/<Root>_<parameter path>     gradient/Net_conv1.weight
    <module path>_output_<i>, _input_<i> conv1_output_0; the root itself goes by its class name: Net_output_0

What nested outputs are called says leaves.py. Nothing here keeps a model alive: parameters are read from the
modules each time. Threads: pure functions of their arguments; the training thread changes models.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import accumulate, chain, compress, repeat
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import nn

from tdcore.format.layout import TensorKind
from tdcore.hooks.pytorch.wrappers import (
    FLAT_KEY,
    class_name,
    ignored_by_ddp,
    innermost,
    kept_parameters,
    wrapped,
)

__all__ = ["ModelView", "Module", "Parameter", "cuda_devices"]

_call: Callable[[Any], Any] = weakref.ref.__call__
_PARAMETERS, _MODULES = attrgetter("_parameters"), attrgetter("_modules")
_GONE = type(None)


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


class ModelView:
    """Names for a model as it was when read. Ask matches() whether the model is still so before using them.

    name: what the root goes by, where that is not its class; its modules' names then begin with it, too.
    parameters: each once, under its first name. ids: id() of each, as of the last matches(). copied: names
    of those that a DistributedDataParallel in the model keeps the same on all ranks. Wrappers are left out
    (wrappers.py): the module in a wrapped root goes by the root. flat: FSDP1 is in it, whose ranks hold
    pieces of flattened parameters.
    """

    def __init__(self, root: nn.Module, name: str | None = None) -> None:
        self.root_name = name or class_name(innermost(root))
        self._inner = f"{name}." if name else ""
        self.copied: frozenset[str] = frozenset()
        self.flat = False
        self.late = False  # as of the last in_backward()
        self.modules: list[Module] = []
        self.parameters: list[Parameter] = []
        self.aliases: dict[str, list[str]] = {}  # name of a tied parameter -> its other names
        self.ids: list[int] = []
        modules, names = self._walk(root)
        self._references = list(map(weakref.ref, modules))
        self._kept = _kept(modules)
        self._plain = all(type(one._parameters) is type(one._modules) is dict for one in modules)
        self._structure, slots = _read(modules, self._plain)
        self._settle(slots)
        self._slot_ids: list[int] = []
        self._pattern = _pattern(slots)
        self._chosen = [first == position for position, first in enumerate(self._pattern)]
        self._name(names)
        self._renew(slots, list(map(id, slots)))

    def _walk(self, root: nn.Module) -> tuple[list[nn.Module], list[tuple[str, str, str]]]:
        """Every module once, and for every slot of a parameter its name, key, and the class that holds it."""
        modules: list[nn.Module] = []
        names: list[tuple[str, str, str]] = []
        stack: list[tuple[nn.Module | None, str, frozenset[str] | None]] = [(root, "", None)]
        seen: set[int] = set()
        copied: list[str] = []
        inner = innermost(root)
        while stack:
            module, path, ignored = stack.pop()
            if module is None or id(module) in seen:
                continue
            seen.add(id(module))
            modules.append(module)
            origin = class_name(inner if module is root else module)
            prefix = f"{path}." if path else ""
            inside = wrapped(module)
            self.flat = self.flat or inside == FLAT_KEY
            if module is root or (inside is None and module is not inner):
                called = self._inner + path if path else self.root_name
                self.modules.append(Module(weakref.ref(module), called, origin))
            left_out = ignored_by_ddp(module)
            if left_out is not None:
                ignored = frozenset(prefix + name for name in left_out)
            keys = module._parameters.keys()
            names += [(f"{self.root_name}_{prefix}{key}", key, origin) for key in keys]
            if ignored is not None:
                copied += [f"{self.root_name}_{prefix}{key}" for key in keys if prefix + key not in ignored]
            for key, child in reversed(module._modules.items()):
                stack.append((child, path if key == inside else prefix + key, ignored))
        self.copied = frozenset(copied)
        return modules, names

    def _name(self, names: list[tuple[str, str, str]]) -> None:
        for position, (name, key, origin) in enumerate(names):
            first = self._pattern[position]
            if first == position:
                kind = TensorKind.BIAS if "bias" in key.lower() else TensorKind.WEIGHT
                self.parameters.append(Parameter(name, kind, origin))
            elif first >= 0:
                self.aliases.setdefault(names[first][0], []).append(name)

    def matches(self, root: nn.Module) -> bool:
        """Whether the model still has these modules, of these classes, and parameters under these names.

        Renews the references to its parameters: each may be another object by now. Looks at every module and
        every slot, for the most part in C; keeps none of them.
        """
        modules: list[Any] = list(map(_call, self._references))
        if modules[0] is not root:
            return False
        try:
            structure, slots = _read(modules, self._plain)
        except (AttributeError, TypeError):  # a module is gone, or another kind of dictionary came
            return False
        if structure != self._structure or (self._kept and not self._settle(slots)):
            return False
        ids = list(map(id, slots))
        if ids != self._slot_ids:
            if _pattern(slots) != self._pattern:
                return False
            self._renew(slots, ids)
        return True

    def held_parameters(self) -> list[nn.Parameter] | None:
        """The parameters as of the last matches(), in the order of `parameters`; None when some are gone."""
        found: list[Any] = list(map(_call, self._held))
        if _GONE in map(type, found):
            self._slot_ids = []  # the next matches() renews
            return None
        return found

    def in_backward(self, parameters: list[nn.Parameter]) -> list[Any]:
        """What autograd gives the gradients of the held parameters to: those of FSDP2 are whole there.

        None where FSDP2 has not made the whole one yet, which the first forward does: `late` says so.
        """
        if not self._kept:
            return parameters
        found: list[Any] = list(parameters)
        places = list(accumulate(self._chosen, initial=0))
        for position, holder in self._kept:
            if self._chosen[position]:
                found[places[position]] = getattr(holder(), "_unsharded_param", None)
        self.late = any(map(is_, found, repeat(None)))
        return found

    def _settle(self, slots: list[nn.Parameter | None]) -> bool:
        """Puts the sharded parameters of FSDP2 in the place of whole ones. False when they are gone."""
        for position, holder in self._kept:
            held = holder()
            if held is None:
                return False
            slots[position] = held.sharded_param
        return True

    def _renew(self, slots: list[nn.Parameter | None], ids: list[int]) -> None:
        self._slot_ids = ids
        self.ids = list(compress(ids, self._chosen))
        parameters: Iterator[Any] = compress(slots, self._chosen)
        self._held: list[weakref.ref[nn.Parameter]] = list(map(weakref.ref, parameters))


def _read(modules: list[nn.Module], plain: bool) -> tuple[list[Any], list[nn.Parameter | None]]:
    """Everything but the parameters that tells one structure from another, in a row, and the parameters.

    plain: all dictionaries of the modules are of the type dict; scripted modules have others. The ids are
    of modules that are held by the others, so equal ids mean the same modules while these are alive.
    """
    held: list[dict[str, nn.Parameter | None]] = list(map(_PARAMETERS, modules))
    children: list[dict[str, nn.Module | None]] = list(map(_MODULES, modules))
    if not plain:
        held = [dict(one.items()) for one in held]
        children = [dict(one.items()) for one in children]
    structure: list[Any] = [
        *map(type, modules),
        *map(tuple, held),
        *map(tuple, children),
        *map(id, chain.from_iterable(map(dict.values, filter(None, children)))),
    ]
    return structure, list(chain.from_iterable(map(dict.values, held)))


def _kept(modules: list[nn.Module]) -> list[tuple[int, weakref.ref[Any]]]:
    """Which slots hold parameters of FSDP2, and what knows the sharded ones."""
    found = list(kept_parameters(modules))
    if not found:
        return []
    slots = [(id(module), key) for module in modules for key in module._parameters]
    places = {slot: position for position, slot in enumerate(slots)}
    named = [(places.get((id(kept.module), kept.key)), kept.holder) for kept in found]
    return [(position, holder) for position, holder in named if position is not None]


def _pattern(slots: list[nn.Parameter | None]) -> list[int]:
    """For each slot the first one that holds the same parameter, -1 for None: shows which are tied."""
    first: dict[int, int] = {}
    return [
        -1 if slot is None else first.setdefault(id(slot), position) for position, slot in enumerate(slots)
    ]


def cuda_devices(model: nn.Module) -> set[int]:
    """The CUDA devices that the model is on now, for setting them up before its first step.

    None while a CUDA graph is captured, where nothing may be set up. A model that moves later has its device
    set up by its first capture.
    """
    found = {one.device.index for one in model.parameters() if one.device.type == "cuda"}
    usable = found and torch.version.cuda is not None and not torch.cuda.is_current_stream_capturing()
    return found if usable else set()
