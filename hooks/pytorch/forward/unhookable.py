"""Layers whose results change under hooks, which are skipped, and modules that are never called.

Some modules are never called: nn.MultiheadAttention reads the weights of its output projection, a forward
takes another branch, a head is used through torch.nn.functional.

Other modules compute in another way if they or their parts have hooks. With hooks, nn.TransformerEncoderLayer
does not use its fused kernel in eval mode, so its results change, and it raises an error if its input is
nested. Such layers get no hooks while the kernel may run, because capture must never change a result.

collections.json lists both groups under "never_called" and "not_tapped", each name with the reason.

Threads: the training thread. Keeps no module alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.compile.code_variants import compile_in_use
from tdcore.hooks.pytorch.model.model_view import ModelView
from tdcore.hooks.run_notes import ModelNotes

if TYPE_CHECKING:
    from tdcore.hooks.pytorch.forward.hook_set import HookSet

__all__ = ["UnhookableLayers", "refuses_hooks"]

_FUSED = (
    "part of an nn.TransformerEncoderLayer in eval mode, which computes other numbers when it has hooks; "
    "call torch.backends.mha.set_fastpath_enabled(False) to capture it"
)
_FUSED_LATER = (
    "part of an nn.TransformerEncoderLayer, which computes other numbers in eval mode when it has hooks, "
    "in a model whose call is compiled: the mode of the next forward is not known in time; "
    "call torch.backends.mha.set_fastpath_enabled(False) to capture it"
)
_READ_BY_ATTENTION = "nn.MultiheadAttention reads its weights and does not call it"
_NOT_CALLED = "no saved forward called it; if its parameters are used, other code reads them"
_NOT_CALLED_COMPILED = f"{_NOT_CALLED}, or it runs inside an operator of compiled code, such as checkpoint()"


def refuses_hooks(module: nn.Module) -> bool:
    """Whether the module computes in another way if it has a hook. Every root has one."""
    return isinstance(module, nn.TransformerEncoderLayer)


class UnhookableLayers:
    """Modules of one model whose outputs are not captured. notes: the notes for collections.json.

    layers: the fused layers of `view`, each with the names of its modules, including its own name.
    """

    def __init__(self, notes: dict[str, Any]) -> None:
        self.ever_excluded: set[str] = set()  # names of modules that were skipped at least once
        self.excluded: frozenset[str] = frozenset()  # names of modules that are skipped now
        self._model_notes = ModelNotes(notes)
        self._seen: HookSet | None = None  # hooks whose modules are in _uncalled, or were called
        # Modules that were not called so far: key of the count of calls -> name.
        self._uncalled: dict[str, str] = {}
        self._called: set[str] = set()
        self._noted_view: ModelView | None = None
        self._noted_count = 0
        self.view: ModelView | None = None
        self.layers: list[tuple[weakref.ref[nn.Module], set[str]]] = []

    def read_model(self, view: ModelView) -> None:
        """Find the fused layers of the model."""
        self.view, self.layers, self.excluded = view, [], frozenset()
        for one in view.modules:
            layer = one.module()
            if layer is not None and refuses_hooks(layer):
                parts = set(map(id, layer.modules()))
                names = {part.name for part in view.modules if id(part.module()) in parts}
                self.layers.append((one.module, names))

    def allowed(self, hook_set: HookSet, plan: Plan, *, in_any_mode: bool = False) -> HookSet:
        """Return the hooks without those on modules that must not have hooks now.

        Args:
            hook_set: Hooks of the model of the last read_model().
            plan: The plan of the step.
            in_any_mode: Leave out modules that must not have hooks in train mode or in eval mode, because
                the mode of the next forward is unknown.
        """
        self.excluded = frozenset()
        if self.view is None or not _fused_kernels_allowed():
            return hook_set
        excluded = [
            names
            for layer, names in self.layers
            if in_any_mode or getattr(layer(), "training", True) is False
        ]
        if not excluded:
            return hook_set
        left = self.excluded = frozenset().union(*excluded)
        key = ("allowed", self.view.root_name)
        known = plan.cache.get(key)
        if known is None or known[0] is not hook_set or known[1] != left:
            known = plan.cache[key] = (
                hook_set,
                left,
                hook_set.filtered(lambda module_hook: module_hook.name not in left),
            )
            reason = _FUSED_LATER if in_any_mode else _FUSED
            self._note_names(
                "not_tapped",
                dict.fromkeys(
                    (module_hook.name for module_hook in hook_set.hooks if module_hook.name in left), reason
                ),
            )
        self.ever_excluded |= left
        allowed: HookSet = known[2]
        return allowed

    def forward_ended(self, hook_set: HookSet, view: ModelView, calls: Mapping[str, int]) -> bool:
        """Note which modules were never called, at the end of a saved forward or of its step.

        Args:
            hook_set: The module hooks.
            view: Names of the model.
            calls: Number of calls of each module.

        Returns:
            Whether the forward called modules that no earlier forward had called.
        """
        if hook_set is not self._seen:
            self._seen = hook_set
            self._uncalled |= self._not_yet_called(hook_set)
        elif not self._uncalled:
            return False
        called = [key for key in self._uncalled if calls.get(key)]
        for key in called:
            del self._uncalled[key]
        self._called.update(called)
        if called or self._noted_view is not view or len(self._uncalled) != self._noted_count:
            self._noted_view, self._noted_count = view, len(self._uncalled)
            reason = _NOT_CALLED_COMPILED if compile_in_use() else _NOT_CALLED
            reasons = dict.fromkeys(_outermost(self._uncalled.values()), reason)
            reasons |= dict.fromkeys(reasons.keys() & _read_by_attention(view), _READ_BY_ATTENTION)
            self._note_names("never_called", reasons)
        return bool(called)

    @property
    def has_uncalled(self) -> bool:
        """Whether there are modules with hooks that no forward has called so far."""
        return bool(self._uncalled)

    def _not_yet_called(self, hook_set: HookSet) -> dict[str, str]:
        suffixes = [
            *((module_hook, "input") for module_hook in hook_set.before),
            *((module_hook, "output") for module_hook in hook_set.after),
        ]
        keys = {f"{module_hook.name}_{what}_": module_hook for module_hook, what in suffixes}
        return {
            key: module_hook.name
            for key, module_hook in keys.items()
            if key not in self._called
            and getattr(type(module_hook.module()), "forward", None) is not nn.Module.forward
        }

    def _note_names(self, what: str, found: dict[str, str]) -> None:
        self._model_notes.set(what, found, even_empty=True)

    def unhookable_modules(self) -> set[str]:
        """Return the names of all modules that must not have hooks in one of the modes."""
        return set().union(*(names for _, names in self.layers))


def _outermost(names: Iterable[str]) -> list[str]:
    """Remove modules that are inside another module of the list."""
    found = set(names)
    return [name for name in sorted(found) if found.isdisjoint(_enclosing(name))]


def _enclosing(name: str) -> Iterator[str]:
    """Names of the modules that contain a module."""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


def _fused_kernels_allowed() -> bool:
    """Whether fused kernels are enabled; True if torch does not have this setting."""
    mha = getattr(torch.backends, "mha", None)
    allowed: bool = mha is None or mha.get_fastpath_enabled()
    return allowed


def _read_by_attention(view: ModelView) -> set[str]:
    """Names of the modules whose weights an attention reads."""
    found = (one.module() for one in view.modules)
    parts = {
        id(part)
        for attention in found
        if isinstance(attention, nn.MultiheadAttention)
        for part in attention.children()
    }
    return {one.name for one in view.modules if id(one.module()) in parts}
