"""Forward hooks that capture the inputs or outputs of one module.

Most calls of a module return one plain tensor whose name is known. Such a call goes from PyTorch to the
native capture in one Python call. Every other call (nested values, replicas, a backward that runs inside the
forward, the first call) takes a longer path, with the same result.

A module that is called several times in a step has rows with call 0, 1, ... A recomputation in backward
(activation checkpointing) has no rows, because the module hooks are detached before backward. If backward
runs inside the forward, a private function of autograd reports it; without that function, only the first call
of a module in a step is captured. In code that is being compiled, a module hook inserts an operator that
receives the same values.

Threads: any (replicas). A module hook never keeps a tensor or module, and refers to no object that holds
module hooks, so that no reference cycle keeps it alive. Copies and pickles of a module contain a function
that does nothing in place of the hook.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from tdcore.format.layout import TensorKind
from tdcore.hooks.faults import FaultHandler
from tdcore.hooks.plan import CaptureSpec, Plan, Spec, TensorSpec
from tdcore.hooks.pytorch.compile.code_variants import CallSite, CompiledRoot
from tdcore.hooks.pytorch.compile.compile_regions import can_insert_call, report_uncaptured
from tdcore.hooks.pytorch.compile.operator import (
    OMITTED,
    is_compiling,
    observe,
    plain_tensors,
    register_observer,
    skip_frames,
)
from tdcore.hooks.pytorch.compile.tracing import (
    dispatch_modes,
    graph_task,
    is_traced,
    symbolic,
    tracing_state,
)
from tdcore.hooks.pytorch.model.flatten import flatten_tensors
from tdcore.hooks.pytorch.model.model_view import Module
from tdcore.hooks.pytorch.model.pickling import InertInCopies
from tdcore.hooks.recorder import Recorder

__all__ = ["ModuleHook", "OverriddenModuleHook", "Override", "RootForwardEndHook", "prefix_of"]

_ONE = ("0",)  # suffixes of an output that is one tensor
_FIRST = [0]  # positions of the selected tensors: the first tensor, and none
_NOTHING: tuple[list[int], CaptureSpec] = [], CaptureSpec(())

Override = weakref.WeakMethod[Callable[[nn.Module, Any, Any], object]]  # forward_hook() of a subclass of Hook


class RootForwardEndHook(InertInCopies):
    """Forward hook of the root, called when the forward has ended, also after an exception."""

    __slots__ = ("end", "fault", "observer_number")

    def __init__(self, end: Callable[[], Callable[[], None] | None], fault: FaultHandler) -> None:
        self.end = end
        self.fault = fault
        self.observer_number = register_observer(self)

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        """End the forward, as a forward hook with always_call=True."""
        if is_compiling():
            if can_insert_call(True):
                observe(self.observer_number, [])
            return
        perhaps = dispatch_modes() or tracing_state() is not None or symbolic._is_fx_tracing_flag
        if not (perhaps and is_traced((*args, output))):
            self.observed([], "")

    def observed(self, values: list[torch.Tensor], what: str) -> None:
        """End the forward. Called by compiled code; never raises."""
        try:
            end = self.end()
            if end is not None:
                end()
        except Exception as error:
            fault = self.fault()
            if fault is not None:
                fault("modules without calls", error)

    def report_uncaptured(self, operator: str) -> None:
        """Do nothing: the forward pre-hook of the root reports uncaptured modules."""


class ModuleHook(InertInCopies):
    """Forward hook that captures a module's outputs, or forward pre-hook that captures its inputs.

    Attributes:
        is_input: Whether this is a pre-hook with keyword arguments.
        is_root: Whether the module is the registered model.
        useful: Whether the plan has selected a tensor of the module at least once.
        gate: Whether to capture, for a hook in compiled code, which stays attached between saved steps.
        site: The call site of the hook in compiled code; None if torch.compile was not in use when the hook
            was created.
    """

    __slots__ = (
        "_capture_specs",
        "_fast_type",
        "_fast_type_after_skip",
        "_fault",
        "_flags",
        "_ids",
        "_kind",
        "_plan",
        "_prefix",
        "_recorder",
        "_single",
        "_skips_next_call",
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
        fault: FaultHandler,
        site: CallSite | None,
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
        self._single: CaptureSpec | None = None  # spec of "<prefix>0", once the plan has selected it
        # Specs by suffixes of names, except those of _single.
        self._capture_specs: dict[tuple[str, ...], tuple[list[int], CaptureSpec]] | None = None
        self._fast_type: type | None = (
            None  # type of values for the fast path: Tensor, or None before the first call
        )
        self._ids: Any = None  # ids of _single, for the fast path
        self._flags = b""
        self._skips_next_call = False
        self._fast_type_after_skip: type | None = None

    def failed(self, error: Exception) -> None:
        """Report an error of tdcore."""
        fault = self._fault()
        if fault is not None:
            fault("activations", error)

    @property
    def called(self) -> bool:
        """Whether the module was called since the hook was created."""
        return self._single is not None or self._capture_specs is not None

    def skip_next_call(self) -> None:
        """Ignore the next call: another hook has replaced this hook, which torch is about to call."""
        self._fast_type_after_skip = self._fast_type
        self._fast_type, self._skips_next_call = None, True

    def __call__(self, module: nn.Module, args: tuple[object, ...], last: Any = None) -> None:
        """Capture one call of the module, as a forward hook or pre-hook. Never raises.

        Args:
            module: The module, or a replica of it.
            args: The module's positional arguments.
            last: The module's output; for a pre-hook, the keyword arguments. None when the pre-hook was
                detached while torch was about to call it.
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
                type(value) is self._fast_type
                and not value.is_nested  # type: ignore[attr-defined]  # a tensor
                and self.module() is module  # not a replica
                and graph_task() == -1  # type: ignore[misc]  # None: the fast path is off
            ):
                now = recorder.now
                prefix = self._prefix
                calls = now.calls  # CurrentStep.next_call(), inlined
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
        """Capture any value, from the module or a replica of it."""
        if symbolic._is_fx_tracing_flag and is_traced(value if isinstance(value, tuple) else (value,)):
            return
        if self._skips_next_call:
            self._fast_type, self._skips_next_call = self._fast_type_after_skip, False
            return
        call = self._recorder.now.next_call(self._prefix)
        if isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        if type(value) is torch.Tensor and not value.is_nested and "_is_replica" not in vars(module):
            self._record(_ONE, [value], call)
            return
        found = list(flatten_tensors(value))
        suffixes = tuple(end + _place(module, tensor) for end, tensor in found)
        self._record(suffixes, [tensor for _, tensor in found], call)

    def _record(self, suffixes: tuple[str, ...], tensors: list[torch.Tensor], call: int) -> None:
        if self._single is not None and suffixes == _ONE:
            self._recorder.capture(tensors, self._single, None, call)
            return
        known = None if self._capture_specs is None else self._capture_specs.get(suffixes)
        if known is None:
            known = self._select(suffixes, tensors)
            if self._single is None or suffixes != _ONE:
                self._capture_specs = {**(self._capture_specs or {}), suffixes: known}
        positions, capture_spec = known
        if positions:
            self._recorder.capture([tensors[position] for position in positions], capture_spec, None, call)

    def _trace(self, value: Any) -> None:
        """Insert the operator while the module is compiled. A tuple of one element counts as its element."""
        if isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        if self.site is None or (self.gate is not None and self.gate.capture_disabled):
            return
        if not can_insert_call():
            report_uncaptured(self.site.label)
            return
        values, suffixes = plain_tensors(list(flatten_tensors(value)))
        observe(self.site.observer_number, values, "\n".join(suffixes))

    def record_from_compiled(self, values: list[torch.Tensor], suffixes: str) -> None:
        """Capture tensors of compiled code. suffixes: suffixes of their names, one per line. Never raises."""
        start = perf_counter_ns()
        recorder = self._recorder
        try:
            call = recorder.now.next_call(self._prefix)
            names = suffixes.split("\n") if suffixes else []
            if OMITTED in suffixes:
                given, nothing = iter(values), torch.empty(0, device="meta")  # no bytes: a row "skipped"
                values = [nothing if name.startswith(OMITTED) else next(given) for name in names]
                names = [name.removeprefix(OMITTED) for name in names]
            self._record(tuple(names), values, call)
        except Exception as error:
            self.failed(error)
        recorder.spent_ns += perf_counter_ns() - start

    def _select(
        self, suffixes: tuple[str, ...], tensors: list[torch.Tensor]
    ) -> tuple[list[int], CaptureSpec]:
        """Return the positions of the tensors that the plan selects, and their spec."""
        if suffixes == _ONE:
            return self._select_single(tensors[0])
        specs = [self._spec_for(end, tensor) for end, tensor in zip(suffixes, tensors, strict=True)]
        positions = [position for position, spec in enumerate(specs) if spec is not None]
        return positions, CaptureSpec([spec for spec in specs if spec is not None])

    def _select_single(self, tensor: torch.Tensor) -> tuple[list[int], CaptureSpec]:
        """Return the selection of one tensor, and prepare the fast path."""
        spec = self._spec_for("0", tensor)
        if spec is None:
            return _NOTHING
        self._single = capture_spec = CaptureSpec.of_one(spec)
        if graph_task is not None and not capture_spec.products:
            self._ids, self._flags = capture_spec.ids, capture_spec.flags
            self._fast_type = torch.Tensor  # set last, because another thread may read it
            self._recorder.now.expect(self._prefix)
        return _FIRST, capture_spec

    def _spec_for(self, end: str, tensor: torch.Tensor) -> Spec | None:
        kind = self._kind
        if self.is_root and end == "loss" and tensor.numel() == 1:
            kind = TensorKind.LOSS  # a model that computes its own loss returns it under this key
        spec = self._plan.fields(self._prefix + end, kind, self.origin)
        if spec is None:
            return None
        self.useful = True
        return TensorSpec(*spec).whole if kind is TensorKind.LOSS and tensor.numel() == 1 else spec


class OverriddenModuleHook(ModuleHook):
    """Module hook for outputs that calls the forward_hook() of a subclass of Hook instead of capturing.

    In compiled code this hook captures like other module hooks.
    """

    __slots__ = ("override",)

    override: Override

    def __call__(self, module: nn.Module, args: tuple[object, ...], last: Any = None) -> None:
        """Call forward_hook() of the subclass, as a forward hook. Never raises."""
        override = None if is_compiling() else self.override()
        if override is None:
            ModuleHook.__call__(self, module, args, last)
            return
        if (graph_task is not None and graph_task() != -1) or is_traced((*args, last)):
            return  # activation checkpointing recomputes the module, or it is traced
        try:
            override(module, args, last)
        except Exception as error:
            fault = self._fault()
            if fault is not None:
                fault("forward_hook", error)


skip_frames(RootForwardEndHook.__call__, ModuleHook.__call__, OverriddenModuleHook.__call__)


def prefix_of(module: Module, kind: TensorKind) -> str:
    """Return the prefix of the names of a module's inputs or outputs."""
    return f"{module.name}_{'input' if kind is TensorKind.INPUT else 'output'}_"


def _place(module: nn.Module, tensor: torch.Tensor) -> str:
    """Return the suffix for a replica (DataParallel): its device; empty for the first replica."""
    if "_is_replica" in vars(module) and tensor.device.index:
        return f"@{tensor.device}"
    return ""
