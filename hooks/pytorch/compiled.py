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
from types import MethodType
from typing import Any, Protocol

import torch
from torch import nn

from tdcore.hooks.pytorch.operator import number_of

__all__ = [
    "CompiledRoot",
    "SecondVariant",
    "Site",
    "Sites",
    "compile_in_use",
    "hide",
    "original",
    "traceable",
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


def traceable() -> bool:
    """Asked while code is compiled: whether a call of ours may stand here.

    Bodies of operators such as cond() and checkpoint() may change nothing outside of them.
    """
    translator = getattr(sys.modules.get("torch._dynamo.symbolic_convert"), "InstructionTranslator", None)
    tracer = translator.current_tx().output.current_tracer if translator is not None else None
    return getattr(tracer, "parent", None) is None


# The compiler calls it while it traces, and takes the answer for a constant.
traceable._dynamo_marked_constant = True  # type: ignore[attr-defined]


class CompiledRoot:
    """Whether the call of the root is itself compiled, and with which variant the next call is to run.

    met: compiled code has told of a forward. asleep: the next one needs no taps. missed: saved steps whose
    forward ran without taps.
    """

    __slots__ = ("asleep", "met", "missed")

    def __init__(self) -> None:
        self.met = self.asleep = False
        self.missed = 0


class SecondVariant:
    """While taps are in it, code compiled for their modules outside of it does not run, and vice versa.

    sites: of the taps that are in it.
    """

    def __init__(self) -> None:
        self._held: list[tuple[dict[str, Any], Any, Any]] = []  # dictionary, what it has now, what it had
        self.sites: list[Site] = []

    def enter(self, taps: Iterable[Sited], root: nn.Module | None = None) -> None:
        """From now on. Asked for in a process that compiles only.

        Modules whose forward is not a plain method (scripted ones) take no part, nor does the root: code that
        holds its call looks at CompiledRoot.asleep.
        """
        for tap in taps:
            tap.site.taker = weakref.ref(tap)
            self.sites.append(tap.site)
            module = tap.module()
            if module is not None and module is not root:
                self.mark(module)

    def leave(self) -> None:
        """Modules are as they were, and what compiled code still gives is not taken."""
        while self.sites:
            self.sites.pop().taker = _nobody
        while self._held:
            attributes, ours, patched = self._held.pop()
            if attributes.get("forward") is ours:
                if patched is None:
                    del attributes["forward"]
                else:
                    attributes["forward"] = patched

    def mark(self, module: nn.Module) -> None:
        """Gives one module its own `forward`, until leave()."""
        attributes = module.__dict__
        patched = attributes.get("forward")
        if patched is None:
            forward = getattr(module, "forward", None)
            if type(forward) is not MethodType or forward.__self__ is not module:
                return
        elif any(attributes is held for held, _, _ in self._held):
            return  # by another tap of this module
        else:
            forward = _through(patched)
        attributes["forward"] = forward
        self._held.append((attributes, forward, patched))


def hide(module: nn.Module) -> Callable[[], None]:
    """Code that was compiled for the module up to now does not match any more. Returns what ends that."""
    variant, reference = SecondVariant(), weakref.ref(module)
    variant.mark(module)

    def end() -> None:
        if reference() is not None:
            variant.leave()

    return end


def _through(forward: Callable[..., Any]) -> Callable[..., Any]:
    def through(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return through


class Sited(Protocol):
    """A tap, as far as this module knows it."""

    site: Site
    module: weakref.ref[nn.Module]

    def take(self, values: list[torch.Tensor], ends: str) -> None:
        """Captures what compiled code gave."""


class Site:
    """What compiled code knows of a tap: where it is, and not under which plan. who: see operator.py."""

    __slots__ = ("__weakref__", "taker", "who")

    def __init__(self) -> None:
        self.who = number_of(self)
        self.taker: weakref.ref[Sited] | Callable[[], None] = _nobody  # the tap that sits there now

    def observed(self, values: list[torch.Tensor], what: str) -> None:
        """Compiled code has come to this place. what: ends of the tensors' names, one a line."""
        tap = self.taker()
        if tap is not None:
            tap.take(values, what)


class Sites:
    """The sites of one hook, by the start of their tensors' names."""

    def __init__(self) -> None:
        self._known: dict[str, Site] = {}

    def at(self, prefix: str) -> Site:
        """The site there, made at the first question."""
        site = self._known.get(prefix)
        if site is None:
            site = self._known[prefix] = Site()
        return site


def _nobody() -> None:
    return None
