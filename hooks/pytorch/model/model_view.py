"""Modules and parameters of a model, and the names of their tensors.

    <Root>_<parameter path>              Net_conv1.weight        (Root: class name of the registered module)
    gradient/<Root>_<parameter path>     gradient/Net_conv1.weight
    <module path>_output_<i>, _input_<i> conv1_output_0; the root itself has its class name: Net_output_0

flatten.py names the tensors of nested outputs. A ModelView does not keep the model alive: parameters are read
from the modules each time. Threads: pure functions of their arguments; the training thread changes models.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain, compress, repeat
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import nn

from tdcore.format.layout import TensorKind
from tdcore.hooks.pytorch.model.wrappers import (
    FLAT_KEY,
    class_name,
    fsdp_parameters,
    ignored_by_ddp,
    innermost,
    is_wrapper,
    wrapped_key,
)

__all__ = ["ModelView", "Module", "Parameter", "cuda_devices"]

_call: Callable[[Any], Any] = weakref.ref.__call__
_PARAMETERS, _MODULES = attrgetter("_parameters"), attrgetter("_modules")
_DEVICE = attrgetter("device")
_GONE = type(None)


class Parameter(NamedTuple):
    """One parameter. name: name of its tensor. origin: class of the module that holds the parameter."""

    name: str
    kind: TensorKind
    origin: str


class Module(NamedTuple):
    """One module. name: prefix of its tensors' names. origin: name of its class."""

    module: weakref.ref[nn.Module]
    name: str
    origin: str


class _ModuleClass(NamedTuple):
    """Properties of a class of modules. name: the result of class_name()."""

    name: str
    is_wrapper: bool
    is_under_ddp: bool

    @classmethod
    def of(cls, module: nn.Module) -> _ModuleClass:
        """Return the properties of the class of a module."""
        return cls(class_name(module), is_wrapper(module), ignored_by_ddp(module) is not None)


class ModelView:
    """Names of a model's tensors at the time when the model was read. Call matches() before using them.

    Wrappers are left out (wrappers.py): the module inside a wrapped root has the names of the root.

    Attributes:
        name: Name of the root, if it is not its class name. The names of its modules then begin with it too.
        parameters: Each parameter once, with its first name.
        ids: id() of each parameter at the last matches().
        copied: Names of the parameters that a DistributedDataParallel in the model keeps equal on all ranks.
        flat: Whether the model contains FSDP1, whose ranks hold pieces of flattened parameters.
    """

    def __init__(self, root: nn.Module, name: str | None = None) -> None:
        self.root_name = name or class_name(innermost(root))
        self._inner = f"{name}." if name else ""
        self.copied: frozenset[str] = frozenset()
        self.flat = False
        self.late = False  # set by in_backward()
        self.modules: list[Module] = []
        self.parameters: list[Parameter] = []
        self.aliases: dict[str, list[str]] = {}  # name of a tied parameter -> its other names
        self.ids: list[int] = []
        modules, slots_named = self._walk(root)
        self._references = list(map(weakref.ref, modules))
        self._fsdp_slots = _fsdp_slots(modules)
        self._plain = all(type(one._parameters) is type(one._modules) is dict for one in modules)
        self._structure, slots = _read(modules, self._plain)
        self._settle(slots)
        self._slot_ids: list[int] = []
        self._pattern = _pattern(slots)
        self._chosen = [first == position for position, first in enumerate(self._pattern)]
        self._name(*slots_named)
        self._renew(slots, list(map(id, slots)))

    def _walk(self, root: nn.Module) -> tuple[list[nn.Module], tuple[list[str], list[str], list[str]]]:
        """Return each module once, and the names, keys and modules' classes of all parameter slots."""
        modules: list[nn.Module] = []
        names: list[str] = []
        slot_keys: list[str] = []
        origins: list[str] = []
        stack: list[tuple[nn.Module | None, str, frozenset[str] | None]] = [(root, "", None)]
        seen: set[int] = set()
        copied: list[str] = []
        inner = innermost(root)
        classes: dict[type, _ModuleClass] = {}
        while stack:
            module, path, ignored = stack.pop()
            if module is None or id(module) in seen:
                continue
            seen.add(id(module))
            modules.append(module)
            known = classes.get(type(module))
            if known is None:
                known = classes[type(module)] = _ModuleClass.of(module)
            origin = class_name(inner) if module is root else known.name
            prefix = f"{path}." if path else ""
            inside = wrapped_key(module) if known.is_wrapper else None
            self.flat = self.flat or inside == FLAT_KEY
            if module is root or (inside is None and module is not inner):
                called = self._inner + path if path else self.root_name
                self.modules.append(Module(weakref.ref(module), called, origin))
            left_out = ignored_by_ddp(module) if known.is_under_ddp else None
            if left_out is not None:
                ignored = frozenset(prefix + name for name in left_out)
            keys = module._parameters.keys()
            names += [f"{self.root_name}_{prefix}{key}" for key in keys]
            slot_keys += keys
            origins += [origin] * len(keys)
            if ignored is not None:
                copied += [f"{self.root_name}_{prefix}{key}" for key in keys if prefix + key not in ignored]
            for key, child in reversed(module._modules.items()):
                stack.append((child, path if key == inside else prefix + key, ignored))
        self.copied = frozenset(copied)
        return modules, (names, slot_keys, origins)

    def _name(self, names: list[str], keys: list[str], origins: list[str]) -> None:
        kind_of = {key: TensorKind.BIAS if "bias" in key.lower() else TensorKind.WEIGHT for key in set(keys)}
        kinds = map(kind_of.__getitem__, keys)
        self.parameters = list(compress(map(Parameter, names, kinds, origins), self._chosen))
        for position, first in enumerate(self._pattern):
            if -1 < first < position:
                self.aliases.setdefault(names[first], []).append(names[position])

    def matches(self, root: nn.Module) -> bool:
        """Whether the model still has these modules, of these classes, and parameters with these names.

        The references to the parameters are updated, because a parameter may have been replaced by another
        object. Visits every module and every parameter slot, mostly in C; keeps no module or parameter alive.
        """
        modules: list[Any] = list(map(_call, self._references))
        if modules[0] is not root:
            return False
        try:
            structure, slots = _read(modules, self._plain)
        except (AttributeError, TypeError):  # a module is gone, or has another kind of dictionary
            return False
        if structure != self._structure or (self._fsdp_slots and not self._settle(slots)):
            return False
        ids = list(map(id, slots))
        if ids != self._slot_ids:
            if _pattern(slots) != self._pattern:
                return False
            self._renew(slots, ids)
        return True

    def held_parameters(self) -> list[nn.Parameter] | None:
        """The parameters at the last matches(), in the order of `parameters`; None if one was deleted."""
        found: list[Any] = list(map(_call, self._held))
        if _GONE in map(type, found):
            self._slot_ids = []  # the next matches() updates them
            return None
        return found

    def in_backward(self, parameters: list[nn.Parameter]) -> list[Any]:
        """Return the parameters for which autograd computes gradients: with FSDP2 the full parameters.

        FSDP2 creates the full parameters in the first forward. Until then the element of such a parameter is
        None, and `late` is set.
        """
        if not self._fsdp_slots:
            return parameters
        found: list[Any] = list(parameters)
        places = list(accumulate(self._chosen, initial=0))
        for position, holder in self._fsdp_slots:
            if self._chosen[position]:
                found[places[position]] = getattr(holder(), "_unsharded_param", None)
        self.late = any(map(is_, found, repeat(None)))
        return found

    def _settle(self, slots: list[nn.Parameter | None]) -> bool:
        """Replace full parameters by the sharded parameters of FSDP2. Return False if these were deleted."""
        for position, holder in self._fsdp_slots:
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
    """Return a list that differs for different structures, and the parameters.

    The list has ids of modules. Each module is kept alive by its parent, so equal ids mean the same modules.

    Args:
        modules: The modules.
        plain: Whether all dictionaries of the modules are of the type dict, unlike those of scripted modules.
    """
    held: list[dict[str, nn.Parameter | None]] = list(map(_PARAMETERS, modules))
    children: list[dict[str, nn.Module | None]] = list(map(_MODULES, modules))
    if not plain:
        held = [dict(one.items()) for one in held]
        children = [dict(one.items()) for one in children]
    structure: list[Any] = [
        *map(type, modules),
        *map(len, held),
        *chain.from_iterable(held),
        *map(len, children),
        *chain.from_iterable(children),
        *map(id, chain.from_iterable(map(dict.values, children))),
    ]
    return structure, list(chain.from_iterable(map(dict.values, held)))


def _fsdp_slots(modules: list[nn.Module]) -> list[tuple[int, weakref.ref[Any]]]:
    """Return the slots that hold parameters of FSDP2, each with FSDP2's object for it."""
    found = list(fsdp_parameters(modules))
    if not found:
        return []
    slots = [(id(module), key) for module in modules for key in module._parameters]
    places = {slot: position for position, slot in enumerate(slots)}
    named = [(places.get((id(kept.module), kept.key)), kept.holder) for kept in found]
    return [(position, holder) for position, holder in named if position is not None]


def _pattern(slots: list[nn.Parameter | None]) -> list[int]:
    """For each slot, return the first slot with the same parameter, which shows tied slots; -1 for None."""
    first: dict[int, int] = {}
    return [
        -1 if slot is None else first.setdefault(id(slot), position) for position, slot in enumerate(slots)
    ]


def cuda_devices(parameters: Iterable[nn.Parameter]) -> set[int]:
    """The current CUDA devices of a model's parameters, which are set up before its first step.

    Empty during the capture of a CUDA graph, because no device may be set up then. If the model is moved
    later, the first capture sets up the new device.
    """
    found = {device.index for device in map(_DEVICE, parameters) if device.type == "cuda"}
    usable = found and torch.version.cuda is not None and not torch.cuda.is_current_stream_capturing()
    return found if usable else set()
