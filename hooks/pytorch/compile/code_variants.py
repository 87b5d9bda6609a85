"""Capture in models that torch.compile has compiled: two variants of their code, with taps and without.

Compiled code looks at the hooks of a module when it is made, and does not notice hooks that come or go
later. So while taps sit on modules, each tapped module also holds its own `forward` in its dictionary: what
is compiled is guarded against that (people patch modules so). Hence code without taps does not match then,
and code with taps does not match at other times. Code without taps is what it would be without tdcore.

Compiled code that holds the call of the root itself (a compiled function that calls the model, torch.compile
of a torch.nn class) is chosen before any Python of ours runs. There the taps for a step are put on when the
step before ends (compiled_steps.py).

Threads: those of the training. Keeps no module alive, except by its own `forward` while that is there.
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
_UNTOLD = {0: True}  # where torch does not tell: yes


def compile_in_use() -> bool:
    """Whether torch.compile was called in this process. From then on code may be compiled at any time."""
    global _ever
    if not _ever:
        compiler = sys.modules.get("torch._dynamo.eval_frame")
        if compiler is not None:
            # None or False: of code that is not to be compiled
            _ever = any(list(getattr(compiler, "cached_backends", _UNTOLD).values()))
    return _ever


def original(module: nn.Module) -> nn.Module:
    """The model inside what torch.compile(model) gives."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    wrapper = getattr(compiler, "OptimizedModule", None)
    while wrapper is not None and isinstance(module, wrapper):
        module = module._orig_mod
    return module


class CompiledRoot:
    """Whether the call of the root is itself compiled, and with which variant the next call is to run.

    met: compiled code has told of a forward. asleep: the next one needs no taps. missed: saved steps whose
    forward ran without taps.
    """

    __slots__ = ("capture_disabled", "missed", "root_is_compiled")

    def __init__(self) -> None:
        self.root_is_compiled = self.capture_disabled = False
        self.missed = 0


class CaptureVariant:
    """While taps are in it, code compiled for their modules outside of it does not run, and vice versa.

    sites: of the taps that are in it.
    """

    def __init__(self) -> None:
        self._held: list[tuple[dict[str, Any], Callable[..., Any]]] = []  # of a module, and its mark
        self.sites: list[CallSite] = []

    def enter(self, hooks: Iterable[Receiver], root: nn.Module | None = None) -> None:
        """From now on. Asked for in a process that compiles only.

        Modules whose forward is not a plain method (scripted ones) take no part, nor does the root: code that
        holds its call looks at CompiledRoot.asleep.
        """
        for module_hook in hooks:
            module_hook.site.receiver = weakref.ref(module_hook)
            self.sites.append(module_hook.site)
            module = module_hook.module()
            if module is not None and module is not root:
                self.mark(module)

    def leave(self) -> None:
        """Modules are as they were, and what compiled code still gives is not taken."""
        while self.sites:
            self.sites.pop().receiver = _no_receiver
        while self._held:
            take_mark(*self._held.pop())

    def mark(self, module: nn.Module) -> None:
        """Gives one module its own `forward` (forward_marks.py), until leave()."""
        attributes = module.__dict__
        if "forward" in attributes and any(attributes is held for held, _ in self._held):
            return  # by another tap of this module
        mark = put_mark(module)
        if mark is not None:
            self._held.append((attributes, mark))


class Receiver(Protocol):
    """A tap, as far as this module knows it."""

    name: str
    site: CallSite
    module: weakref.ref[nn.Module]

    def record_from_compiled(self, values: list[torch.Tensor], suffixes: str) -> None:
        """Captures what compiled code gave."""


class CallSite:
    """What compiled code knows of a tap: where it is, and not under which plan.

    who, label: its number, see operator.py and compile_regions.py.
    """

    __slots__ = ("__weakref__", "_notes", "label", "observer_number", "receiver")

    def __init__(self, notes: UncapturedModules) -> None:
        self._notes = notes
        self.observer_number = register_observer(self)
        self.label = str(int(self.observer_number))
        # the tap that sits there now
        self.receiver: weakref.ref[Receiver] | Callable[[], None] = _no_receiver

    def observed(self, values: list[torch.Tensor], what: str) -> None:
        """Compiled code has come to this place. what: ends of the tensors' names, one a line."""
        module_hook = self.receiver()
        if module_hook is not None:
            module_hook.record_from_compiled(values, what)

    def report_uncaptured(self, operator: str) -> None:
        """Code is compiled that cannot come to this place."""
        module_hook = self.receiver()
        if module_hook is not None:
            self._notes.note(module_hook.name, operator)


class CallSites:
    """The sites of one hook, by the start of their tensors' names."""

    def __init__(self, notes: UncapturedModules) -> None:
        self._known: dict[str, CallSite] = {}
        self._notes = notes

    def at(self, prefix: str) -> CallSite:
        """The site there, made at the first question."""
        site = self._known.get(prefix)
        if site is None:
            site = self._known[prefix] = CallSite(self._notes)
        return site


def _no_receiver() -> None:
    return None
