"""RecomputeDetector: detection of the modules that activation checkpointing recomputes in backward.

The outputs of these modules are captured once, in the forward. The detection takes place in the first saved
step after a change of the model's structure: during one backward each module has a hook that notes its calls.
The names are in collections.json under "recomputed". Layers that must not have hooks (unhookable.py) are left
out.

Threads: watch and stop in the training thread, hooks also in threads of autograd. Keeps no module alive.
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
    """Forward hook that notes whether its module ran inside a backward."""

    __slots__ = ("name", "seen")

    def __init__(self, seen: set[str], name: str) -> None:
        self.seen = seen
        self.name = name

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        """Note a call of the module inside a backward, as a forward hook."""
        if is_compiling():
            return  # compiled code recomputes without calling modules
        if graph_task is not None and graph_task() != -1:
            self.seen.add(self.name)


skip_frames(RecomputeHook.__call__)


class RecomputeDetector:
    """Detection of one model's recomputed modules. notes: the notes for collections.json."""

    def __init__(self, notes: dict[str, Any]) -> None:
        self.watching = False
        self.known: ModelView | None = None  # the model that was checked
        self._model_notes = ModelNotes(notes)
        self._key = RemovableHandle(OrderedDict()).id  # unique among all hooks of the process
        self._seen: set[str] = set()
        self._attached: list[dict[Any, Any]] = []

    def watch(self, view: ModelView, left_by: Callable[[], Collection[str]]) -> bool:
        """Attach the hooks after a saved forward, before its backward. Return whether they are attached.

        Args:
            view: The model.
            left_by: Returns the names of modules that must not have hooks.
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
        """Remove the hooks: the next step begins, or the hook is closed."""
        self.watching = False
        for hooks in self._attached:
            hooks.pop(self._key, None)
        self._attached.clear()
        self._model_notes.set("recomputed", sorted(self._seen))
