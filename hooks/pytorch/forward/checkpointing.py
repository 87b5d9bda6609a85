"""RecomputeDetector: which modules activation checkpointing computes again in backward.

Their outputs are captured once, in the forward. That they run again is found out in the first saved step of a
model as it is built now: for one backward its modules carry a hook that notes its own call there. The names
are in collections.json under "recomputed". Layers that must not carry hooks (unhookable.py) are left out.

Threads: watch and stop in the training thread, hooks also in those of autograd. Keeps no module alive.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tdcore.hooks.pytorch.compile.operator import is_compiling, skip_frames
from tdcore.hooks.pytorch.compile.tracing import graph_task
from tdcore.hooks.pytorch.model.model_view import ModelView
from tdcore.hooks.pytorch.model.pickling import InertInCopies
from tdcore.hooks.run_notes import ModelNotes

__all__ = ["RecomputeDetector"]


class RecomputeHook(InertInCopies):
    """A forward hook: notes that a module ran inside a backward."""

    __slots__ = ("name", "seen")

    def __init__(self, seen: set[str], name: str) -> None:
        self.seen = seen
        self.name = name

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        """As a forward hook."""
        if is_compiling():
            return  # what compiled code computes again it does within itself
        if graph_task is not None and graph_task() != -1:
            self.seen.add(self.name)


skip_frames(RecomputeHook.__call__)


class RecomputeDetector:
    """What one model computes again. notes: of collections.json."""

    def __init__(self, notes: dict[str, Any]) -> None:
        self.watching = False
        self.known: ModelView | None = None  # the model that was looked at
        self._model_notes = ModelNotes(notes)
        self._key = RemovableHandle(OrderedDict()).id  # unique among all hooks of the process
        self._seen: set[str] = set()
        self._attached: list[dict[Any, Any]] = []

    def watch(self, view: ModelView, left_by: Callable[[], Collection[str]]) -> bool:
        """A saved forward has ended; its backward may follow. Whether it is watched.

        left_by: names of modules to leave alone.
        """
        if self.known is view or not torch.is_grad_enabled():
            return False
        if sys.exc_info()[0] is not None:
            return False  # the forward failed
        self.known = view
        self.watching = True
        left = left_by()
        for one in view.modules:
            module: Any = one.module()
            if module is not None and one.name not in left:
                with suppress(Exception):  # some modules accept no hooks; hook_attachment.py logs it
                    module._forward_hooks[self._key] = RecomputeHook(self._seen, one.name)
                    self._attached.append(module._forward_hooks)
        return True

    def stop(self) -> None:
        """The next step begins, or the hook is closed."""
        self.watching = False
        for hooks in self._attached:
            hooks.pop(self._key, None)
        self._attached.clear()
        self._model_notes.set("recomputed", sorted(self._seen))
