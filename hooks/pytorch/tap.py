"""A tap: what captures the outputs or inputs of one module while it sits on it as a forward hook.

Most calls of a tapped module give one plain tensor under a name that is known: they go from PyTorch to the
native capture in one Python call. All else (nested values, replicas, a backward that runs inside the forward,
the first call) takes the longer way, with the same result.

A module called several times in a step gives rows with call 0, 1, ... A recomputation in backward
(activation checkpointing) gives none: the taps are off by then, and where backward runs inside the forward,
autograd says so. Without that (private) question to autograd, only the first call of a module in a step is
captured. In code that is being compiled a tap leaves an operator that brings it the same values.

Threads: any (replicas). Never keeps a tensor or module, and refers to nothing that holds taps, so that no
cycle keeps them alive. Copies and pickles of a module hold a do-nothing of the standard library instead.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import Batch, Plan, Want
from tdcore.hooks.pytorch.bodies import traceable, untraced
from tdcore.hooks.pytorch.compiled import CompiledRoot, Site
from tdcore.hooks.pytorch.leaves import leaves
from tdcore.hooks.pytorch.model import Module
from tdcore.hooks.pytorch.operator import LEFT_OUT, is_compiling, number_of, observe, plain, skip_frames
from tdcore.hooks.pytorch.tracing import dispatch_modes, is_traced, symbolic, tracing_state
from tdcore.hooks.recorder import Recorder

__all__ = ["EndTap", "InertInCopies", "OverriddenTap", "Override", "Tap", "graph_task", "prefix_of"]

# The running backward of this thread, -1 when there is none. None where torch does not tell.
graph_task: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)

Override = weakref.WeakMethod[Callable[[nn.Module, Any, Any], object]]  # forward_hook() of a subclass of Hook
Fault = weakref.WeakMethod[Callable[[str, Exception], None]]  # BaseHook._fault


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


class EndTap(InertInCopies):
    """The root's last forward hook: the forward has ended, well or with an exception."""

    __slots__ = ("end", "fault", "who")

    def __init__(self, end: Callable[[], Callable[[], None] | None], fault: Fault) -> None:
        self.end = end
        self.fault = fault
        self.who = number_of(self)

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        """As a forward hook that is always called."""
        if is_compiling():
            if traceable(True):
                observe(self.who, [])
            return
        perhaps = dispatch_modes() or tracing_state() is not None or symbolic._is_fx_tracing_flag
        if not (perhaps and is_traced((*args, output))):
            self.observed([], "")

    def observed(self, values: list[torch.Tensor], what: str) -> None:
        """As what compiled code calls: the same. Never raises."""
        try:
            end = self.end()
            if end is not None:
                end()
        except Exception as error:
            fault = self.fault()
            if fault is not None:
                fault("modules without calls", error)

    def untraced(self, operator: str) -> None:
        """Not asked for: what sits at the beginning of the root tells it."""


class Tap(InertInCopies):
    """Captures what one module gives, as a forward hook, or gets, as a pre-hook with keyword arguments.

    kind: INPUT makes it a pre-hook. is_root: the module is the registered model. useful: some tensor of it
    was wanted. gate: of a tap that stays on between saved steps where it is compiled: whether to tap then.
    """

    __slots__ = (
        "_batches",
        "_fault",
        "_flags",
        "_ids",
        "_in_place",
        "_kind",
        "_passes_by",
        "_plan",
        "_prefix",
        "_recorder",
        "_short",
        "_single",
        "gate",
        "is_input",
        "is_root",
        "module",
        "name",
        "origin",
        "site",
        "useful",
    )

    def __init__(
        self,
        module: Module,
        kind: TensorKind,
        plan: Plan,
        recorder: Recorder,
        fault: Fault,
        site: Site,
        *,
        is_root: bool = False,
        gate: CompiledRoot | None = None,
    ) -> None:
        self.module, self.name, self.origin = module
        self.gate = gate
        self.site = site
        self.useful = False
        self.is_input = kind is TensorKind.INPUT
        self.is_root = is_root
        self._kind = kind
        self._plan = plan
        self._prefix = prefix_of(module, kind)
        self._recorder = recorder
        self._fault = fault
        self._single: Batch | None = None  # of "<prefix>0", once that is known to be wanted
        self._batches: dict[tuple[str, ...], tuple[list[int], Batch]] = {}  # by ends of names
        self._short: type | None = None  # what may take the short way: a plain tensor, or still nothing
        self._ids: Any = None  # of _single, for the short way
        self._flags = b""
        self._passes_by = False
        self._in_place: type | None = None

    def failed(self, error: Exception) -> None:
        """An error of our own."""
        fault = self._fault()
        if fault is not None:
            fault("activations", error)

    @property
    def called(self) -> bool:
        """Whether it has seen a value."""
        return bool(self._batches)

    def pass_by(self) -> None:
        """The next call is none: torch had this tap in hand when another one took its place."""
        self._in_place = self._short
        self._short, self._passes_by = None, True

    def __call__(self, module: nn.Module, args: tuple[object, ...], last: Any = None) -> None:
        """A module was called, or is about to be. last: its output, or keyword arguments. Never raises.

        An input tap has no keyword arguments when it was taken off while torch had it in hand.
        """
        if is_compiling():
            self._trace((*args, last) if self.is_input and last else args if self.is_input else last)
            return
        if (dispatch_modes() or tracing_state() is not None) and is_traced():
            return
        start = perf_counter_ns()
        recorder = self._recorder
        try:
            value = last
            if self.is_input:
                value = (*args, last) if last else args[0] if len(args) == 1 else args
            if (
                type(value) is self._short
                and not value.is_nested  # type: ignore[attr-defined]  # it is a tensor
                and self.module() is module  # and not a replica of it
                and graph_task() == -1  # type: ignore[misc]  # _short is not set where there is none
            ):
                now = recorder.now
                prefix = self._prefix
                calls = now.calls  # Now.next_call(), without calling it
                call = calls[prefix]
                calls[prefix] = call + 1
                recorder.native([value], self._ids, self._flags, now.step, now.mode, now.mode_step, call)
            elif graph_task is None:
                if recorder.now.next_call(f"{self._prefix}once") == 0:
                    self._capture(module, value)
            elif graph_task() == -1:
                self._capture(module, value)
        except Exception as error:
            self.failed(error)
        recorder.spent_ns += perf_counter_ns() - start

    def _capture(self, module: nn.Module, value: object) -> None:
        """Any value, from the module or a copy of it."""
        if symbolic._is_fx_tracing_flag and is_traced(value if isinstance(value, tuple) else (value,)):
            return
        if self._passes_by:
            self._short, self._passes_by = self._in_place, False
            return
        call = self._recorder.now.next_call(self._prefix)
        if isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        plain = type(value) is torch.Tensor and not value.is_nested
        if plain and self._single is not None and "_is_replica" not in vars(module):
            self._recorder.capture([value], self._single, None, call)
            return
        found = list(leaves(value))
        ends = tuple(end + _place(module, tensor) for end, tensor in found)
        self._record(ends, [tensor for _, tensor in found], call)

    def _record(self, ends: tuple[str, ...], tensors: list[torch.Tensor], call: int) -> None:
        known = self._batches.get(ends)
        if known is None:
            known = self._batches[ends] = self._choose(ends, tensors)
        positions, batch = known
        if positions:
            self._recorder.capture([tensors[position] for position in positions], batch, None, call)

    def _trace(self, value: Any) -> None:
        """The module is being compiled. Arguments of one element are that element, as in __call__()."""
        if isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        if self.gate is not None and self.gate.asleep:
            return
        if not traceable():
            untraced(self.site.label)
            return
        values, ends = plain(list(leaves(value)))
        observe(self.site.who, values, "\n".join(ends))

    def take(self, values: list[torch.Tensor], ends: str) -> None:
        """Captures what compiled code gave. ends: of their names, one a line. Never raises."""
        start = perf_counter_ns()
        recorder = self._recorder
        try:
            call = recorder.now.next_call(self._prefix)
            names = ends.split("\n") if ends else []
            if LEFT_OUT in ends:
                given, nothing = iter(values), torch.empty(0, device="meta")  # no bytes: a row "skipped"
                values = [nothing if name.startswith(LEFT_OUT) else next(given) for name in names]
                names = [name.removeprefix(LEFT_OUT) for name in names]
            self._record(tuple(names), values, call)
        except Exception as error:
            self.failed(error)
        recorder.spent_ns += perf_counter_ns() - start

    def _choose(self, ends: tuple[str, ...], tensors: list[torch.Tensor]) -> tuple[list[int], Batch]:
        """Which of the tensors are wanted."""
        wants = [self._want(end, tensor) for end, tensor in zip(ends, tensors, strict=True)]
        positions = [position for position, want in enumerate(wants) if want is not None]
        batch = Batch([want for want in wants if want is not None])
        if ends == ("0",) and positions:
            self._single = batch
            if graph_task is not None and not batch.products:
                self._ids, self._flags = batch.ids, batch.flags
                self._short = torch.Tensor  # last: another thread may come by
                self._recorder.now.expect(self._prefix)
        return positions, batch

    def _want(self, end: str, tensor: torch.Tensor) -> Want | None:
        kind = self._kind
        if self.is_root and end == "loss" and tensor.numel() == 1:
            kind = TensorKind.LOSS  # models that compute their own loss return it under this key
        want = self._plan.want(self._prefix + end, kind, self.origin)
        if want is None:
            return None
        self.useful = True
        return want.whole if kind is TensorKind.LOSS and tensor.numel() == 1 else want


class OverriddenTap(Tap):
    """An output tap that calls the forward_hook() of a subclass of Hook instead of capturing.

    In compiled code it captures as any other tap.
    """

    __slots__ = ("override",)

    override: Override

    def __call__(self, module: nn.Module, args: tuple[object, ...], last: Any = None) -> None:
        """As a forward hook. Never raises."""
        override = None if is_compiling() else self.override()
        if override is None:
            Tap.__call__(self, module, args, last)
            return
        if (graph_task is not None and graph_task() != -1) or is_traced((*args, last)):
            return  # activation checkpointing computes the module again, or somebody traces it
        try:
            override(module, args, last)
        except Exception as error:
            fault = self._fault()
            if fault is not None:
                fault("forward_hook", error)


skip_frames(EndTap.__call__, Tap.__call__, OverriddenTap.__call__)


def prefix_of(module: Module, kind: TensorKind) -> str:
    """Start of the names of a module's inputs or outputs."""
    return f"{module.name}_{'input' if kind is TensorKind.INPUT else 'output'}_"


def _place(module: nn.Module, tensor: torch.Tensor) -> str:
    """Replicas of a module (DataParallel) are told apart by device; the first keeps the plain name."""
    if "_is_replica" in vars(module) and tensor.device.index:
        return f"@{tensor.device}"
    return ""
