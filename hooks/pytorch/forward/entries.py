"""Entries: submodules that a script calls directly, because it trains the root through another method.

For example, `model.compute_loss(x)` calls submodules and never the root's own forward, so the root's pre-hook
is not called. Therefore every module below the root has a pre-hook until the root's first training step has
ended. The outermost modules that are called outside of the root's forward are the entries. Once they are
found, the modules below them have no pre-hooks.

A call inside the root's forward is also an entry if an optimizer has stepped since that forward began
(Lightning's ddp runs a whole training_step as the root's forward). A model without entries has no pre-hooks
after the first module call of its second training step. The pre-hooks are attached again when an optimizer
steps without an observed forward since its last step.

Threads: the training thread. Keeps no module alive.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import repeat
from operator import attrgetter, setitem
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tdcore.errors import StopTraining
from tdcore.hooks.pytorch.compile.operator import is_compiling, skip_frames
from tdcore.hooks.pytorch.compile.tracing import (
    dispatch_modes,
    graph_task,
    is_traced,
    symbolic,
    tracing_state,
)
from tdcore.hooks.pytorch.forward.unhookable import refuses_hooks
from tdcore.hooks.pytorch.model.pickling import InertInCopies
from tdcore.hooks.pytorch.model.wrappers import wrapped_modules

if TYPE_CHECKING:
    from tdcore.hooks.pytorch.steps.driver import TrainingDriver
    from tdcore.hooks.pytorch.steps.root import Root

__all__ = ["Entries", "running_call"]


_PRE_HOOKS, _WITH_KWARGS = attrgetter("_forward_pre_hooks"), attrgetter("_forward_pre_hooks_with_kwargs")
_CALL_CODE = getattr(getattr(nn.Module, "_call_impl", None), "__code__", None)


def running_call(root: Root, known: int = 0) -> int:
    """Search the stack of this thread for a call of the root, or of a module inside its wrapper.

    Args:
        root: The root.
        known: id() of the frame of an earlier result. While this call still runs, the local variables of no
            other frame are read, which would take most of the time.

    Returns:
        id() of the frame of the call; 0: no such call is running.
    """
    frame: FrameType | None = sys._getframe(1)
    while known and frame is not None:
        if id(frame) == known:
            if _calls(frame, root):  # another frame may have the id of a frame that has ended
                return known
            break
        frame = frame.f_back
    frame = sys._getframe(1)
    while frame is not None:
        if _calls(frame, root):
            return id(frame)
        frame = frame.f_back
    return 0


def _calls(frame: FrameType, root: Root) -> bool:
    """Whether the frame is a call of the root, or of a module inside its wrapper."""
    if frame.f_code is not _CALL_CODE:
        return False
    called = frame.f_locals.get("self")
    return called is not None and (called is root.reference() or root.is_inner(called))


class EntryHook(InertInCopies):
    """Forward pre-hook of a module below a root."""

    __slots__ = ("entries",)

    def __init__(self, entries: Entries) -> None:
        self.entries = weakref.ref(entries)

    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Handle a call of the module, as a forward pre-hook with keyword arguments."""
        if is_compiling():
            return
        entries = self.entries()
        if entries is None:
            return
        try:
            entries.called(module, args, kwargs)
        except StopTraining:
            raise
        except Exception as error:
            entries.failed(error)


skip_frames(EntryHook.__call__)


class Entries:
    """Entries of one root: the modules that the script calls instead of the root."""

    def __init__(self, hook: TrainingDriver, root: Root) -> None:
        self._hook = weakref.ref(hook)
        self._root = weakref.ref(root)
        self._key = RemovableHandle(OrderedDict()).id  # unique among all hooks of the process
        self._signal = EntryHook(self)
        self.used = False  # an entry was called in a training step
        self._watching = False  # search for entries: the first training step has not ended
        self._step: object = None  # the updates of the first training step, see driver_state.py
        self._root_call = 0  # result of the last running_call()
        # By id of each module with a pre-hook: its dictionary of pre-hooks, and of the pre-hooks that get
        # keyword arguments.
        self._carriers: dict[int, dict[Any, Any]] = {}
        self._with_kwargs: dict[int, dict[Any, Any]] = {}

    @property
    def on(self) -> bool:
        """Whether modules have pre-hooks."""
        return bool(self._carriers)

    def put_on(self) -> None:
        """Attach the pre-hooks."""
        root = self._root()
        module = root.reference() if root is not None else None
        if module is None:
            return
        parts = list(module.modules())
        left_out = {id(module), *map(id, wrapped_modules(module))}
        for layer in filter(refuses_hooks, parts):
            left_out.update(map(id, layer.modules()))
        parts = [part for part in parts if id(part) not in left_out]
        try:
            self._carry(parts)
        except Exception:
            for part in parts:
                with suppress(Exception):  # some modules of other libraries accept no hooks
                    self._carry([part])

    def _carry(self, parts: list[nn.Module]) -> None:
        """Attach the pre-hook to modules. Raises an exception if a module accepts no hooks."""
        identities = list(map(id, parts))
        hooks: list[Any] = list(map(_PRE_HOOKS, parts))
        with_kwargs: list[Any] = list(map(_WITH_KWARGS, parts))
        for each in (hooks, with_kwargs):
            list(map(setitem, each, repeat(self._key), repeat(self._signal)))
        self._carriers.update(zip(identities, hooks, strict=True))
        self._with_kwargs.update(zip(identities, with_kwargs, strict=True))

    def watch(self) -> None:
        """Search for entries until the first training step has ended. Called in the root's own forward."""
        self._watching, self._step = True, None

    def found(self, root: Root) -> None:
        """Keep pre-hooks only on the outermost modules. Called at a call outside of the root's forward."""
        self._watching, self.used = False, True
        root.by_itself = root.follows = False
        if not self.on:
            self.put_on()

    @contextmanager
    def taken_off(self) -> Iterator[None]:
        """Remove the pre-hooks, and attach them again at the end, unless the hook was closed meanwhile."""
        on, watching = self.on, self._watching
        self.take_off()
        try:
            yield
        finally:
            hook = self._hook()
            if on and hook is not None and not hook._off:
                self.put_on()
                self._watching = watching

    def take_off(self) -> None:
        """Remove the pre-hooks."""
        self._watching = False
        for identity in list(self._carriers):
            self._take_off(identity)

    def _take_off(self, identity: int) -> None:
        hooks = self._carriers.pop(identity, None)
        if hooks is not None:
            hooks.pop(self._key, None)
            self._with_kwargs.pop(identity).pop(self._key, None)

    def called(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Handle a call of a module with a pre-hook: an entry, or part of a known forward."""
        hook, root = self._hook(), self._root()
        if hook is None or root is None or hook._off or id(module) not in self._carriers:
            return  # a copy of the module also has its hooks
        perhaps = dispatch_modes() or tracing_state() is not None or symbolic._is_fx_tracing_flag
        if perhaps and is_traced((*args, *kwargs.values())):
            return
        if self._watching and not self._is_entry(hook, root, module):
            return
        for part in module.modules():
            if part is not module:
                self._take_off(id(part))
        before = root.module_hooks.input_hook(module)
        hook._on_forward(root, module, None, None)
        now = root.module_hooks.input_hook(module)
        if now is before:
            return  # torch calls the pre-hook of that module next
        if before is not None:
            before.skip_next_call()
        if now is not None and hook._clock.plan is not None:
            now(module, args, kwargs)

    def failed(self, error: Exception) -> None:
        """Report an error of tdcore."""
        hook = self._hook()
        if hook is not None:
            hook._fault("steps", error)

    def _is_entry(self, hook: TrainingDriver, root: Root, module: nn.Module) -> bool:
        """Whether this call is an entry, while entries are searched."""
        if not module.training or not torch.is_grad_enabled() or "_is_replica" in vars(module):
            return False
        if graph_task is not None and graph_task() != -1:
            return False  # activation checkpointing recomputes the module
        updates = hook._updates
        if self._step is None:
            self._step = updates
        self._root_call = running_call(root, self._root_call)
        if self._root_call and not updates:
            if updates is not self._step:
                self.take_off()
            return False
        self.found(root)
        return True
