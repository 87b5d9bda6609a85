"""Capture in compiled models: two variants of their code, with module hooks and without.

The compiler reads the hooks of a module once, and does not detect hooks that are attached or removed later.
Therefore each module with attached hooks also has its own `forward` in its dictionary. Compiled code is
guarded against such an attribute, so code without hooks does not match while hooks are attached, and code
with hooks does not match at other times. Code without hooks is the same as without tdcore.

If compiled code contains the call of the root itself (a compiled function that calls the model, torch.compile
of a torch.nn class), the code is selected before any Python code of tdcore runs. In this case the hooks for a
step are attached when the previous step ends (compiled_steps.py).

Threads: the threads of the training. Keeps no module alive, except while the module has its own `forward`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import nn

from tdcore.hooks.pytorch.compile.compile_regions import UncapturedModules
from tdcore.hooks.pytorch.compile.forward_marks import put_mark, take_mark
from tdcore.hooks.pytorch.compile.operator import register_observer

__all__ = [
    "CallSite",
    "CallSites",
    "CaptureVariant",
    "CompiledRoot",
    "compile_in_use",
    "original",
]

_ever = False
_UNKNOWN = {0: True}  # True if torch does not provide the information


def compile_in_use() -> bool:
    """Whether torch.compile was called in this process, so that code may be compiled at any time."""
    global _ever
    if not _ever:
        compiler = sys.modules.get("torch._dynamo.eval_frame")
        if compiler is not None:
            # None or False is stored for code that must not be compiled.
            _ever = any(list(getattr(compiler, "cached_backends", _UNKNOWN).values()))
    return _ever


def original(module: nn.Module) -> nn.Module:
    """Return the model inside a result of torch.compile(model)."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    wrapper = getattr(compiler, "OptimizedModule", None)
    while wrapper is not None and isinstance(module, wrapper):
        module = module._orig_mod
    return module


class CompiledRoot:
    """Whether the call of the root is itself compiled, and the variant of the next call.

    Attributes:
        root_is_compiled: Compiled code has reported a forward.
        capture_disabled: The next forward needs no module hooks.
        missed: Number of saved steps whose forward ran without module hooks.
    """

    __slots__ = ("capture_disabled", "missed", "root_is_compiled")

    def __init__(self) -> None:
        self.root_is_compiled = self.capture_disabled = False
        self.missed = 0


class CaptureVariant:
    """Selection of the compiled code of modules: while it is entered, only code compiled within it runs.

    sites: The call sites of its module hooks.
    """

    def __init__(self) -> None:
        # Dictionary of a module, and its mark.
        self._held: list[tuple[dict[str, Any], Callable[..., Any]]] = []
        self.sites: list[CallSite] = []

    def enter(self, hooks: Iterable[Receiver], root: nn.Module | None = None) -> None:
        """Select code with module hooks until leave(). Called only in a process that compiles.

        Modules whose forward is not a plain method (scripted modules) are left out. The root is left out too:
        code that contains its call reads CompiledRoot.capture_disabled.
        """
        for module_hook in hooks:
            site = module_hook.site
            if site is None:
                continue  # hooks for a process that compiles have sites
            site.receiver = weakref.ref(module_hook)
            self.sites.append(site)
            module = module_hook.module()
            if module is not None and module is not root:
                self.mark(module)

    def leave(self) -> None:
        """Restore the modules. Tensors that compiled code passes afterwards are ignored."""
        while self.sites:
            self.sites.pop().receiver = _no_receiver
        while self._held:
            take_mark(*self._held.pop())

    def mark(self, module: nn.Module) -> None:
        """Set an own `forward` on one module (forward_marks.py), until leave()."""
        attributes = module.__dict__
        if "forward" in attributes and any(attributes is held for held, _ in self._held):
            return  # another hook of this module has set it
        mark = put_mark(module)
        if mark is not None:
            self._held.append((attributes, mark))


class Receiver(Protocol):
    """A module hook that receives values from compiled code."""

    name: str
    site: CallSite | None
    module: weakref.ref[nn.Module]

    def record_from_compiled(self, values: list[torch.Tensor], suffixes: str) -> None:
        """Capture tensors of compiled code."""


class CallSite:
    """Call site of a module hook in compiled code, which is independent of the plan.

    observer_number, label: Number of the site, as a tensor and as text (operator.py, compile_regions.py).
    """

    __slots__ = ("__weakref__", "_notes", "label", "observer_number", "receiver")

    def __init__(self, notes: UncapturedModules) -> None:
        self._notes = notes
        self.observer_number = register_observer(self)
        self.label = str(int(self.observer_number))
        # The current module hook.
        self.receiver: weakref.ref[Receiver] | Callable[[], None] = _no_receiver

    def observed(self, values: list[torch.Tensor], what: str) -> None:
        """Pass the tensors to the module hook. what: suffixes of their names, one per line."""
        module_hook = self.receiver()
        if module_hook is not None:
            module_hook.record_from_compiled(values, what)

    def report_uncaptured(self, operator: str) -> None:
        """Note that compiled code cannot reach this site."""
        module_hook = self.receiver()
        if module_hook is not None:
            self._notes.note(module_hook.name, operator)


class CallSites:
    """The call sites of one hook, by the prefix of their tensors' names."""

    def __init__(self, notes: UncapturedModules) -> None:
        self._known: dict[str, CallSite] = {}
        self._notes = notes

    def at(self, prefix: str) -> CallSite:
        """The call site for this prefix; created at the first request."""
        site = self._known.get(prefix)
        if site is None:
            site = self._known[prefix] = CallSite(self._notes)
        return site


def _no_receiver() -> None:
    return None
