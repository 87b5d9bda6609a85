"""Wrappers of a model for training on many ranks, and classes that libraries derive from module classes.

A wrapper (DistributedDataParallel, FullyShardedDataParallel, the result of torch.compile) does not change the
names of tensors. fully_shard() and replicate() derive a class from the class of a module; class_name()
returns the original name. FSDP2 swaps between sharded and full parameters: a module holds the full parameters
during forward, and the sharded parameters otherwise. The sharded parameters are used here, because the
optimizer holds them.

The attributes that this module reads are private to torch or may change. Without them, names are longer and
nothing else changes. Threads: any.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tdcore.hooks.pytorch.model.introspection import isinstance_if_imported

__all__ = [
    "FLAT_KEY",
    "WRAPPERS",
    "FsdpParameter",
    "active_ddp",
    "class_name",
    "ddp_ranks",
    "fsdp_parameters",
    "ignored_by_ddp",
    "innermost",
    "is_wrapper",
    "module_to_register",
    "wrapped_key",
    "wrapped_modules",
]

FLAT_KEY = "_fsdp_wrapped_module"  # key in the older FullyShardedDataParallel


class Wrapper(NamedTuple):
    """A class whose modules call the model that they hold.

    Attributes:
        module: Where the class is defined.
        name: Name of the class.
        key: Key of the module inside the wrapper.
        keeps_names: Whether tensors of the model have the same names as without the wrapper.
        registers_inner: Whether `tdcore run` registers the module inside instead of the wrapper.
    """

    module: str
    name: str
    key: str
    keeps_names: bool
    registers_inner: bool


WRAPPERS = (
    Wrapper("torch.nn.parallel.distributed", "DistributedDataParallel", "module", True, True),
    Wrapper("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod", True, True),
    # The wrapper holds the flattened parameters itself, so it is the root.
    Wrapper("torch.distributed.fsdp", "FullyShardedDataParallel", FLAT_KEY, True, False),
    Wrapper(
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "ActivationWrapper",
        "_checkpoint_wrapped_module",
        True,
        False,
    ),
    Wrapper("torch.nn.parallel.data_parallel", "DataParallel", "module", False, True),
    Wrapper("deepspeed.runtime.engine", "DeepSpeedEngine", "module", False, True),
)
_KEEPING_NAMES = tuple(wrapper for wrapper in WRAPPERS if wrapper.keeps_names)
_REGISTERING_INNER = tuple(wrapper for wrapper in WRAPPERS if wrapper.registers_inner)
# Classes that fully_shard() and replicate() derive from the class of a module.
_DYNAMIC_CLASS_NAMES = {"FSDPModule", "ReplicateModule", "DDP"}


class FsdpParameter(NamedTuple):
    """A parameter that FSDP2 manages.

    Attributes:
        module: The module that holds the parameter.
        key: The key of the parameter in the module.
        holder: FSDP2's object for the parameter, with the attribute sharded_param.
    """

    module: nn.Module
    key: str
    holder: weakref.ref[Any]


def class_name(module: nn.Module) -> str:
    """Return the name of the module's original class."""
    kinds = type(module).__mro__
    at = 1
    while at < len(kinds) - 1 and _is_dynamic_class(kinds[at]):
        at += 1
    return (kinds[at] if at > 1 else kinds[0]).__name__


def is_wrapper(module: nn.Module) -> bool:
    """Whether the class of the module is that of a wrapper that keeps the names of tensors."""
    return any(isinstance_if_imported(module, wrapper.module, wrapper.name) for wrapper in _KEEPING_NAMES)


def wrapped_key(module: nn.Module, wrappers: Iterable[Wrapper] = _KEEPING_NAMES) -> str | None:
    """Return the key of the module inside a wrapper; None if the module is not a wrapper."""
    for wrapper in wrappers:
        if (
            isinstance_if_imported(module, wrapper.module, wrapper.name)
            and module._modules.get(wrapper.key) is not None
        ):
            return wrapper.key
    return None


def innermost(module: nn.Module, wrappers: Iterable[Wrapper] = _KEEPING_NAMES) -> nn.Module:
    """Return the module inside all wrappers."""
    while (key := wrapped_key(module, wrappers)) is not None:
        module = module._modules[key]  # type: ignore[assignment]  # wrapped_key() has checked it
    return module


def module_to_register(module: nn.Module) -> nn.Module:
    """Return the module that `tdcore run` registers when the script calls this module.

    Wrappers are identified by the exact name of their class, because wrappers of other libraries have the
    same names, and a subclass may call the module inside in its own way.
    """
    while True:
        names = {wrapper.name: wrapper.key for wrapper in _REGISTERING_INNER}
        inside = getattr(module, names.get(type(module).__name__, ""), None)
        if not isinstance(inside, nn.Module):
            return module
        module = inside


def wrapped_modules(module: nn.Module) -> list[nn.Module]:
    """Return the modules inside a wrapper, outermost first; empty if the module is not a wrapper."""
    found: list[nn.Module] = []
    while (key := wrapped_key(module)) is not None:
        module = module._modules[key]  # type: ignore[assignment]  # wrapped_key() has checked it
        found.append(module)
    return found


def ignored_by_ddp(module: nn.Module) -> frozenset[str] | None:
    """Return the paths of parameters that DDP does not synchronize; None if the module is under no DDP."""
    if isinstance(module, DistributedDataParallel):
        return frozenset(getattr(module, "parameters_to_ignore", ()))
    return frozenset() if _is_dynamic_class(type(module).__mro__[1], "DDP") else None


def ddp_ranks(module: nn.Module) -> list[int] | None:
    """Return the ranks that the first DistributedDataParallel in the module synchronizes; None: all ranks."""
    found = next((one for one in module.modules() if isinstance(one, DistributedDataParallel)), None)
    if found is None or not torch.distributed.is_initialized():
        return None
    ranks = sorted(torch.distributed.get_process_group_ranks(found.process_group))
    return ranks if len(ranks) < torch.distributed.get_world_size() else None


def active_ddp() -> nn.Module | None:
    """Return the DistributedDataParallel whose forward is running, or None."""
    module = getattr(DistributedDataParallel, "_active_ddp_module", None)
    return module if isinstance(module, nn.Module) else None


def fsdp_parameters(modules: list[nn.Module]) -> Iterator[FsdpParameter]:
    """Yield the parameters that FSDP2 manages; none if this torch does not provide them."""
    for module in modules:
        if class_name(module) == type(module).__name__:
            continue
        state = getattr(module, "_get_fsdp_state", lambda: None)()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [getattr(state, "_fsdp_param_group", None)]  # until torch 2.11
        for held in (held for group in groups for held in getattr(group, "fsdp_params", ())):
            info = getattr(held, "_module_info", None)
            if info is None or not isinstance(getattr(held, "sharded_param", None), torch.Tensor):
                continue
            yield FsdpParameter(info.module, info.param_name, weakref.ref(held))
            for shared in zip(info.shared_modules, info.shared_param_names, strict=True):
                yield FsdpParameter(*shared, weakref.ref(held))


def _is_dynamic_class(kind: type, *names: str) -> bool:
    return kind.__module__.startswith("torch.distributed") and kind.__name__ in (
        names or _DYNAMIC_CLASS_NAMES
    )
