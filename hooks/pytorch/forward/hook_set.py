"""HookSet: a set of module hooks that are attached and detached together.

Threads: attach and detach in the training thread. Keeps no module alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import repeat
from operator import setitem
from typing import Any

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.forward.module_hooks import ModuleHook, prefix_of
from tdcore.hooks.pytorch.model.model_view import ModelView, Module

__all__ = ["NO_HOOKS", "Attached", "HookSet", "may_hook", "put_on", "take_off", "waits_for_names"]

_CANDIDATES = 4  # number of outputs that are assumed before the names of a module's outputs are known

_call: Callable[[Any], Any] = weakref.ref.__call__
_HOOKS, _PRE_HOOKS, _WITH_KWARGS = "_forward_hooks", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"

Attached = list[dict[Any, Any]]  # dictionaries of modules that contain a key of tdcore
Unhook = Callable[[dict[Any, Any]], object]  # removes that key


class HookSet:
    """The module hooks of one plan for one set of modules. Immutable.

    Attributes:
        before: Forward pre-hooks, for inputs.
        after: Forward hooks, for outputs.
        root_input_hook: Hook for the root's input, if any. It is called directly and never attached, because
            the root's pre-hooks are already running when module hooks are attached.
        hooks: All hooks of the set.
        entries: Modules, the names of their dictionaries of hooks, and the values to store there.
    """

    __slots__ = ("after", "before", "entries", "hooks", "root_input_hook")

    def __init__(
        self, before: list[ModuleHook], after: list[ModuleHook], root_input_hook: ModuleHook | None = None
    ) -> None:
        self.before = before
        self.after = after
        self.root_input_hook = root_input_hook
        self.hooks = [*before, *after, *filter(None, [root_input_hook])]
        pre, post = (
            [module_hook.module for module_hook in before],
            [module_hook.module for module_hook in after],
        )
        where = [_PRE_HOOKS] * len(pre) + [_WITH_KWARGS] * len(pre) + [_HOOKS] * len(post)
        # The hook is also stored as its flag, so that pickles leave the flag out.
        what: list[object] = [*before, *before, *after]
        self.entries = [*pre, *pre, *post], where, what

    def one_by_one(self) -> list[HookSet]:
        """Return a set for each hook that is attached to a module."""
        return [HookSet([module_hook], []) for module_hook in self.before] + [
            HookSet([], [module_hook]) for module_hook in self.after
        ]

    def filtered(self, keep: Callable[[ModuleHook], bool]) -> HookSet:
        """Return the set of the hooks for which keep() is true."""
        root_input_hook = (
            self.root_input_hook if self.root_input_hook is not None and keep(self.root_input_hook) else None
        )
        return (
            HookSet(list(filter(keep, self.before)), list(filter(keep, self.after)), root_input_hook)
            or NO_HOOKS
        )

    def __bool__(self) -> bool:
        return bool(self.hooks)


NO_HOOKS = HookSet([], [])


def put_on(hook_set: HookSet, key: int, attached: Attached) -> None:
    """Attach the hooks by writing to the modules' dictionaries, ten times as fast as register_forward_hook().

    Args:
        hook_set: The hooks.
        key: Key of the hooks in the dictionaries.
        attached: List to which the dictionaries are added, also when an error is raised.

    Raises:
        Exception: A module accepts no hooks.
    """
    modules, where, what = hook_set.entries
    found = list(map(getattr, map(_call, modules), where))
    attached += found
    list(map(setitem, found, repeat(key), what))


def take_off(attached: Attached, *unhooks: Unhook) -> None:
    """Remove tdcore's keys from the dictionaries."""
    for unhook in unhooks:
        list(map(unhook, attached))
    attached.clear()


def may_hook(plan: Plan, module: Module, kind: TensorKind) -> bool:
    """Whether the plan may select an input or output of the module."""
    if not plan.may_take(kind):
        return False
    of_kind = plan.of_kind(kind)
    if of_kind.takes_every:
        return True
    prefix = prefix_of(module, kind)
    for index in range(_CANDIDATES):  # noqa: SIM110 -- any() of a generator takes twice the time
        if of_kind.form(f"{prefix}{index}", module.origin) is not None:
            return True
    return False


def waits_for_names(plan: Plan, view: ModelView) -> bool:
    """Whether a pattern of the user may match outputs whose names are only known after the first call."""
    asking = [collection for collection in plan.collections if collection.is_filled]
    if not asking:
        return False
    names = [parameter.name for parameter in view.parameters]
    names += [f"gradient/{name}" for name in names]
    for module in view.modules:
        names += [f"{module.name}_{what}_{i}" for what in ("output", "input") for i in range(_CANDIDATES)]
        names += [f"output_gradient/{module.name}_output_{i}" for i in range(_CANDIDATES)]
    return any(collection.waits_for_names(names) for collection in asking)
