"""Outputs, inputs and losses: hooks on modules, attached only around the steps that save them.

A sleeping hook costs 1.6 us per module call, so between saved steps modules carry none: `attach` puts taps
on the modules whose names a collection asks for when the root's forward begins, `detach` takes them off
when it ends. Values are captured inside the tap, so a later in-place operation (ReLU(inplace=True)) changes
nothing.

A module called several times in a step gives rows with call 0, 1, ... A recomputation in backward
(activation checkpointing) gives none: the taps are off by then, and where backward runs inside the forward,
autograd says so. Without that (private) question to autograd, only the first call of a module in a step is
captured.

Threads: attach and detach in the training thread; taps run in any thread (replicas). Never keeps a tensor
or module. Hooks on a module are inert in its copies: a deep copy or pickle holds a do-nothing of the
standard library instead.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tdcore.hooks.plan import Batch, Plan, Want
from tdcore.hooks.pytorch_model import ModelView, Module, leaves
from tdcore.hooks.recorder import Recorder
from tdcore.layout import TensorKind

__all__ = ["InertInCopies", "Tap", "Taps", "graph_task"]

_CANDIDATES = 4  # how many outputs a module may have before its names are first seen
# The running backward of this thread, -1 when there is none. None where torch does not tell.
graph_task: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)


class InertInCopies:
    """Base of what is put on a module: copies and pickles of the module hold a callable that does nothing.

    It comes from the standard library, so that a saved model needs no tdcore to load.
    """

    __slots__ = ("__weakref__",)

    def __copy__(self) -> Any:
        return contextlib.nullcontext().__exit__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class Tap(InertInCopies):
    """Captures what one module gives or gets. Called by PyTorch as a forward hook or forward pre-hook."""

    __slots__ = ("batches", "is_root", "kind", "name", "origin", "plan", "prefix", "single", "taps", "useful")

    def __init__(
        self, taps: Taps, plan: Plan, name: str, origin: str, kind: TensorKind, *, is_root: bool = False
    ) -> None:
        self.taps = weakref.ref(taps)
        self.plan = plan
        self.name = name
        self.origin = origin
        self.kind = kind
        self.is_root = is_root
        self.prefix = f"{name}_input_" if kind is TensorKind.INPUT else f"{name}_output_"
        self.useful = False  # some tensor of it was wanted
        self.single: Batch | bool | None = None  # of "<prefix>0"; None: not asked yet, False: not wanted
        self.batches: dict[tuple[str, ...], tuple[list[int], Batch]] = {}


class OutputTap(Tap):
    """A forward hook."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        taps = self.taps()
        if taps is not None:
            taps.capture(self, module, output)


class InputTap(Tap):
    """A forward pre-hook with keyword arguments."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        taps = self.taps()
        if taps is not None:
            taps.capture(self, module, (*args, kwargs) if kwargs else args)


class EndTap(InertInCopies):
    """The root's last forward hook: the forward has ended, well or with an exception."""

    __slots__ = ("end",)

    def __init__(self, end: weakref.WeakMethod[Callable[[], None]]) -> None:
        self.end = end

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        end = self.end()
        if end is not None:
            end()


class Entry(NamedTuple):
    """What goes on one module."""

    module: weakref.ref[nn.Module]
    before: InputTap | None
    after: OutputTap | None


# What was put where: a dictionary of a module, and the key in it.
Attached: TypeAlias = "list[tuple[dict[Any, Any], int]]"


class Taps:
    """All taps of one hook. fault: BaseHook._fault. end: called when the root's forward has ended."""

    def __init__(
        self,
        recorder: Recorder,
        fault: weakref.WeakMethod[Callable[[str, Exception], None]],
        end: weakref.WeakMethod[Callable[[], None]],
        warn: Callable[[str], None],
    ) -> None:
        self.off = False
        self._warn = warn
        self._recorder = recorder
        self._clock = recorder.clock
        self._fault_ref = fault
        self._end = EndTap(end)
        # Ids of hooks are unique in the process; a module can carry one of each of these.
        self._key, self._end_key, self._loss_key = (RemovableHandle(OrderedDict()).id for _ in range(3))
        self._attached: Attached = []
        self._losses: list[Module] = []
        self._losses_attached: Attached = []

    # Modules ----------------------------------------------------------------------------------------------

    def attach(
        self, root: nn.Module, view: ModelView, plan: Plan, arguments: object, *, watch_end: bool
    ) -> None:
        """The root's forward begins, in a step that is saved."""
        if self._attached:
            self.detach()  # the last forward ended without telling
        entries = [] if self.off else self._entries(view, plan)
        try:
            for entry in list(entries):
                module = entry.module()
                if module is root:  # its pre-hooks are running
                    _put(root, entry._replace(before=None), self._key, self._attached)
                elif module is not None and not self._try_put(module, entry):
                    entries.remove(entry)
            if entries or watch_end:
                hooks: dict[Any, Any] = root._forward_hooks
                hooks[self._end_key] = self._end
                root._forward_hooks_always_called[self._end_key] = True
                self._attached += [(hooks, self._end_key), (root._forward_hooks_always_called, self._end_key)]
        except BaseException:
            self.detach()
            raise
        first = entries[0] if entries else None
        if first is not None and first.module() is root and first.before is not None:
            self.capture(first.before, root, arguments)

    def detach(self) -> None:
        """The forward has ended, or the hook is closed."""
        attached, self._attached = self._attached, []
        for hooks, key in attached:
            hooks.pop(key, None)

    def _try_put(self, module: nn.Module, entry: Entry) -> bool:
        """False, and a message, for a module that takes no hooks (some foreign kinds)."""
        try:
            _put(module, entry, self._key, self._attached)
        except Exception as error:
            tap = entry.after or entry.before
            what = f"{tap.name} ({tap.origin})" if tap is not None else type(module).__name__
            self._warn(f"outputs of {what} cannot be captured: {type(error).__name__}: {error}")
            return False
        return True

    def _entries(self, view: ModelView, plan: Plan) -> list[Entry]:
        """Who is tapped under this plan. The first time, modules that may turn out to matter are, too."""
        mode = self._clock.stamp.mode
        known: tuple[ModelView, list[Entry]] | None = plan.cache.get(("taps", mode))
        if known is not None and known[0] is view:
            return known[1]
        trial = plan.cache.pop(("trial", mode), None)
        if trial is not None and trial[0] is view:
            entries = [
                entry for entry in trial[1] if any(tap is not None and tap.useful for tap in entry[1:])
            ]
        elif _waits_for_names(plan, view):
            entries = [self._entry(module, plan, view, everything=True) for module in view.modules]
            plan.cache["trial", mode] = (view, entries)
            return entries
        else:
            entries = [self._entry(module, plan, view, everything=False) for module in view.modules]
            entries = [entry for entry in entries if entry.before or entry.after]
        plan.cache["taps", mode] = (view, entries)
        return entries

    def _entry(self, module: Module, plan: Plan, view: ModelView, *, everything: bool) -> Entry:
        is_root = module is view.modules[0]
        before = after = None
        if everything or _may_take(plan, module.name, TensorKind.INPUT):
            before = InputTap(self, plan, module.name, module.origin, TensorKind.INPUT, is_root=is_root)
        own_loss = is_root and plan.may_take(TensorKind.LOSS)
        if everything or own_loss or _may_take(plan, module.name, TensorKind.OUTPUT):
            after = OutputTap(self, plan, module.name, module.origin, TensorKind.OUTPUT, is_root=is_root)
        return Entry(module.module, before, after)

    # Losses -----------------------------------------------------------------------------------------------

    def add_loss(self, criterion: nn.Module) -> None:
        """Tells of a loss module. Two of one class get a number in their name."""
        origin = type(criterion).__name__
        alike = sum(known.origin == origin for known in self._losses)
        name = f"{origin}_{alike}" if alike else origin
        self._losses.append(Module(weakref.ref(criterion), name, origin))

    @property
    def has_losses(self) -> bool:
        """Whether loss modules carry taps now."""
        return bool(self._losses_attached)

    def attach_losses(self, plan: Plan) -> None:
        """A step begins that is saved."""
        if self.off:
            return
        entries: list[Entry] | None = plan.cache.get("losses")
        if entries is None or len(entries) != len(self._losses):
            entries = plan.cache["losses"] = [self._loss_entry(module, plan) for module in self._losses]
        self.detach_losses()
        for entry in entries:
            module = entry.module()
            if module is not None:
                _put(module, entry, self._loss_key, self._losses_attached)

    def detach_losses(self) -> None:
        """A step begins that is not saved, or the hook is closed."""
        attached, self._losses_attached = self._losses_attached, []
        for hooks, key in attached:
            hooks.pop(key, None)

    def _loss_entry(self, module: Module, plan: Plan) -> Entry:
        before = after = None
        if _may_take(plan, module.name, TensorKind.INPUT):
            before = InputTap(self, plan, module.name, module.origin, TensorKind.INPUT)
        if _may_take(plan, module.name, TensorKind.LOSS):
            after = OutputTap(self, plan, module.name, module.origin, TensorKind.LOSS)
        return Entry(module.module, before, after)

    # Values -----------------------------------------------------------------------------------------------

    def capture(self, tap: Tap, module: nn.Module, value: object) -> None:
        """A module was called. Never raises."""
        if self.off:
            return
        start = perf_counter_ns()
        try:
            if type(value) is tuple and len(value) == 1:
                value = value[0]
            if graph_task is None or graph_task() != -1:
                if graph_task is None and self._clock.next_call(f"{tap.prefix}once") == 0:
                    self._capture(tap, module, value)
            elif (
                type(tap.single) is Batch
                and type(value) is torch.Tensor
                and "_is_replica" not in vars(module)
            ):
                self._recorder.capture([value], tap.single, None, self._clock.next_call(tap.prefix))
            else:
                self._capture(tap, module, value)
        except Exception as error:
            fault = self._fault_ref()
            if fault is not None:
                fault("activations", error)
        self._recorder.spent_ns += perf_counter_ns() - start

    def _capture(self, tap: Tap, module: nn.Module, value: object) -> None:
        call = self._clock.next_call(tap.prefix)
        if isinstance(value, torch.Tensor) and "_is_replica" not in vars(module):
            if tap.single is None:
                want = self._want(tap, "0", value)
                tap.single = Batch([want]) if want is not None else False
            if isinstance(tap.single, Batch):
                self._recorder.capture([value], tap.single, None, call)
            return
        found = list(leaves(value))
        ends = tuple(end + _place(module, tensor) for end, tensor in found)
        known = tap.batches.get(ends)
        if known is None:
            wants = [self._want(tap, end, tensor) for end, (_, tensor) in zip(ends, found, strict=True)]
            chosen = [position for position, want in enumerate(wants) if want is not None]
            known = tap.batches[ends] = chosen, Batch([want for want in wants if want is not None])
        if known[0]:
            self._recorder.capture([found[position][1] for position in known[0]], known[1], None, call)

    def _want(self, tap: Tap, end: str, tensor: torch.Tensor) -> Want | None:
        kind = tap.kind
        if tap.is_root and end == "loss" and tensor.numel() == 1:
            kind = TensorKind.LOSS  # models that compute their own loss return it under this key
        want = tap.plan.want(tap.prefix + end, kind, tap.origin)
        if want is None:
            return None
        tap.useful = True
        return want.whole if kind is TensorKind.LOSS and tensor.numel() == 1 else want


def _put(module: nn.Module, entry: Entry, key: int, attached: Attached) -> None:
    """Straight into the module's dictionaries: a tenth of the time of register_forward_hook()."""
    if entry.before is not None:
        before: dict[Any, Any] = module._forward_pre_hooks
        with_kwargs: dict[Any, Any] = module._forward_pre_hooks_with_kwargs
        attached += [(before, key), (with_kwargs, key)]
        with_kwargs[key] = True
        before[key] = entry.before
    if entry.after is not None:
        after: dict[Any, Any] = module._forward_hooks
        attached.append((after, key))
        after[key] = entry.after


def _place(module: nn.Module, tensor: torch.Tensor) -> str:
    """Replicas of a module (DataParallel) are told apart by device; the first keeps the plain name."""
    if "_is_replica" in vars(module) and tensor.device.index:
        return f"@{tensor.device}"
    return ""


def _may_take(plan: Plan, name: str, kind: TensorKind) -> bool:
    if not plan.may_take(kind):
        return False
    what = "input" if kind is TensorKind.INPUT else "output"
    return any(plan.takes(f"{name}_{what}_{index}", kind) for index in range(_CANDIDATES))


def _waits_for_names(plan: Plan, view: ModelView) -> bool:
    """Whether a pattern of the user may mean outputs whose names are only known once they were seen."""
    asking = [collection for collection in plan.collections if collection.is_filled]
    if not asking:
        return False
    names = [parameter.name for parameter in view.parameters]
    names += [f"gradient/{name}" for name in names]
    for module in view.modules:
        names += [f"{module.name}_{what}_{i}" for what in ("output", "input") for i in range(_CANDIDATES)]
    return any(collection.waits_for_names(names) for collection in asking)
