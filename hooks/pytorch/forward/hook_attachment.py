"""Attachment of module hooks for the forwards of saved steps.

A forward hook that does nothing costs 1.6 us per module call, so modules have no hooks between saved steps.
`attach` puts hooks on the modules that a collection selects, when the root's first forward of a saved step
begins. `detach` removes them when an evaluation's forward or the training step ends (driver.py). Values are
captured inside the hook (module_hooks.py), so a later in-place operation (ReLU(inplace=True)) does not change
them.

Threads: attach and detach in the training thread; module hooks run in any thread. Keeps no module alive.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import methodcaller
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tdcore.format.layout import TensorKind
from tdcore.hooks.clock import StepId
from tdcore.hooks.faults import FaultHandler
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.compile.code_variants import CallSites, CaptureVariant, CompiledRoot
from tdcore.hooks.pytorch.compile.compile_regions import UncapturedModules
from tdcore.hooks.pytorch.forward.checkpointing import RecomputeDetector
from tdcore.hooks.pytorch.forward.hook_set import (
    NO_HOOKS,
    Attached,
    HookSet,
    may_hook,
    put_on,
    take_off,
    waits_for_names,
)
from tdcore.hooks.pytorch.forward.module_hooks import (
    ModuleHook,
    OverriddenModuleHook,
    Override,
    RootForwardEndHook,
    prefix_of,
)
from tdcore.hooks.pytorch.forward.output_gradients import OutputGradients
from tdcore.hooks.pytorch.forward.unhookable import UnhookableLayers
from tdcore.hooks.pytorch.model.model_view import ModelView, Module
from tdcore.hooks.recorder import Recorder

__all__ = ["Arguments", "ModuleHooks"]

_OUTPUT_GRADIENT = TensorKind.OUTPUT_GRADIENT

Arguments = tuple[tuple[object, ...], Mapping[str, object]]  # positional and keyword arguments of a call


class ModuleHooks:
    """All module hooks of one root.

    Args:
        fault: BaseHook._fault.
        end_forward: Called when the root's forward has ended.
        compiled: Whether the call of the root is compiled.
    """

    def __init__(
        self,
        recorder: Recorder,
        fault: FaultHandler,
        end_forward: weakref.WeakMethod[Callable[[], None]],
        warn: Callable[[str], None],
        notes: dict[str, Any],
        compiled: CompiledRoot,
    ) -> None:
        self._off = False
        self.override: Override | None = None  # forward_hook() of a subclass of Hook
        self._unhookable = UnhookableLayers(notes)
        self._compiled = compiled
        self._output_gradients = OutputGradients(recorder, fault, notes)
        self._recompute_detector = RecomputeDetector(notes)
        self.has_pending_backward = False  # finish_backward() must be called
        self._now: tuple[HookSet, ModelView] | None = None  # attached while the root's forward runs
        self._warn = warn
        self._recorder = recorder
        self._fault_ref = fault
        self.end_hook = RootForwardEndHook(end_forward, fault)
        # Ids of hooks are unique in the process; a module can have one hook of each of these ids.
        self._key, self._end_key = (RemovableHandle(OrderedDict()).id for _ in range(2))
        keys = self._key, self._end_key
        self._unhook, self._unhook_end = (methodcaller("pop", key, None) for key in keys)
        self._sites = CallSites(UncapturedModules(notes))
        self._variant = CaptureVariant()
        self._attached: Attached = []
        # Hooks of the module inside a wrapped root, if the script calls it directly.
        self._inner_attached: Attached = []
        self.end_attached: Attached = []  # not empty: the hook for the end of the forward is attached
        self.step: StepId | None = None  # the step for which module hooks are attached
        self._running = 0  # calls of the root that have not ended, while hooks are attached

    def switch_off(self) -> None:
        """Stop the capture. The end of the root's forward is still reported."""
        self._off = True
        self._output_gradients.switch_off()
        self._variant.leave()
        take_off(self._attached, self._unhook)
        list(map(self._unhook, self._inner_attached))

    @property
    def is_on(self) -> bool:
        """Whether module hooks are attached, or the hook for the end of the root's forward."""
        return bool(self._attached or self.end_attached)

    # Modules ----------------------------------------------------------------------------------------------

    def attach(
        self,
        root: nn.Module,
        view: ModelView,
        plan: Plan,
        arguments: Arguments | None,
        step_id: StepId | None,
        *,
        watch_end: bool,
        also: Plan | None = None,
    ) -> None:
        """Attach hooks when the root's first forward of a saved step begins.

        Args:
            root: The registered module.
            view: Names of the tensors of the root.
            plan: The plan of the step.
            arguments: Positional and keyword arguments of the call. None: compiled code passes them to
                record_root_input(), or the script calls another module than the root.
            step_id: The step; None: it has not begun, and the plan is empty.
            watch_end: Also attach the hook for the end of the root's forward.
            also: A second plan, whose modules get hooks too, so that compiled code has few different sets of
                hooks.
        """
        if self._now is not None or self._recompute_detector.watching:
            self.detach()  # the end of the last forward was not reported
        hook_set = NO_HOOKS
        if not self._off:
            hook_set = self._hook_set(view, plan, also)
            if view is not self._unhookable.view:
                self._unhookable.read_model(view)
            if self._unhookable.layers:
                hook_set = self._unhookable.allowed(hook_set, plan, in_any_mode=arguments is None)
        try:
            try:
                put_on(hook_set, self._key, self._attached)
            except Exception:
                hook_set = self._put_on_allowed(view, plan, hook_set)
            if _OUTPUT_GRADIENT in plan.kinds and not self._off:
                self._output_gradients.attach(view, plan, self._unhookable.excluded)
                if self._output_gradients.attached:
                    self.has_pending_backward = watch_end = True
            if also is not None:
                self._variant.enter(hook_set.hooks, root)
            if watch_end or hook_set is not NO_HOOKS:
                hooks: dict[Any, Any] = root._forward_hooks
                always: dict[Any, Any] = root._forward_hooks_always_called
                self.end_attached = [hooks, always]
                hooks[self._end_key] = self.end_hook
                always[self._end_key] = self.end_hook
        except BaseException:
            self.detach()
            raise
        self._now = hook_set, view
        self._running = 0 if arguments is None else 1
        self.step = step_id
        if hook_set.root_input_hook is not None and arguments is not None:
            hook_set.root_input_hook(root, *arguments)

    def attach_inner(self, inner: nn.Module | None) -> None:
        """Attach the root's output hook to the module inside a wrapper, which the script calls directly.

        inner: The module inside. None: the script calls the root, and the hook is detached.
        """
        take_off(self._inner_attached, self._unhook, self._unhook_end)
        if inner is None:
            return
        hooks: dict[Any, Any] = inner._forward_hooks
        always: dict[Any, Any] = inner._forward_hooks_always_called
        self._inner_attached += [hooks, always]
        hook_set, _ = self._now or (NO_HOOKS, None)
        inside = next((module_hook for module_hook in hook_set.after if module_hook.is_root), None)
        if inside is not None:
            hooks[self._key] = inside
        if self.end_attached:
            hooks[self._end_key], always[self._end_key] = self.end_hook, True

    def input_hook(self, module: nn.Module) -> ModuleHook | None:
        """Return the hook for inputs that is attached to the module."""
        module_hook = module._forward_pre_hooks.get(self._key)
        return module_hook if isinstance(module_hook, ModuleHook) else None

    def output_hook(self, module: nn.Module) -> ModuleHook | None:
        """Return the hook for outputs that is attached to the module."""
        module_hook = module._forward_hooks.get(self._key)
        return module_hook if isinstance(module_hook, ModuleHook) else None

    @property
    def root_input_hook(self) -> ModuleHook | None:
        """The hook that captures the root's input in the running step."""
        return self._now[0].root_input_hook if self._now is not None else None

    def record_root_input(self, values: list[torch.Tensor], suffixes: str) -> None:
        """Capture the root's input, which compiled code passes."""
        root_input_hook = self.root_input_hook
        if root_input_hook is not None and suffixes:
            root_input_hook.record_from_compiled(values, suffixes)

    def begin_call(self, root: nn.Module, arguments: Arguments | None) -> None:
        """Handle a further call of the root in the step for which hooks are attached."""
        if arguments is not None:
            self._running += 1
        root_input_hook = self.root_input_hook
        if root_input_hook is not None and arguments is not None:
            root_input_hook(root, *arguments)

    def forward_ended(self, *, keep: bool = False, always: bool = True) -> None:
        """Handle the end of the root's forward, and note which modules it did not call.

        The end of a forward inside another forward of the root (Lightning's ddp) has no effect.

        Args:
            keep: Leave the hooks on modules that no forward has called yet.
            always: With keep, leave the hooks on all modules.
        """
        self._running = max(self._running - 1, 0)
        if self._running:
            return
        now = self._now
        if now is None or self._off:
            self.detach()
            return
        hook_set, view = now
        self._unhookable.forward_ended(hook_set, view, self._recorder.now.calls)
        if not keep or self._variant.sites or not (always or self._unhookable.has_uncalled):
            self.detach()
        detector = self._recompute_detector
        # Compiled code needs no detector, and one more hook would cause another compilation.
        if (
            detector.known is not view
            and not self._compiled.root_is_compiled
            and detector.watch(view, self._unhookable.unhookable_modules)
        ):
            self.has_pending_backward = True

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record forwards and backwards into CUDA graphs. Their output gradients are not awaited."""
        with self._output_gradients.not_awaited():
            yield

    def recording_ended(self) -> None:
        """Detach the hooks after a forward was recorded. Its replays call no hooks of the same modules."""
        if self._now is not None and not self._off:
            self._unhookable.forward_ended(*self._now, self._recorder.now.calls)
        self.detach()

    def end_step(self) -> bool:
        """End the step. Return whether modules were called after the root's forward had ended."""
        found = False
        if self._now is not None and self._unhookable.has_uncalled and not self._off:
            found = self._unhookable.forward_ended(*self._now, self._recorder.now.calls)
        self.detach()
        return found

    def finish_backward(self) -> None:
        """Finish the parts that wait for the backward of the step, whether the backward has run or not.

        Module hooks stay attached, because they may already be those for a compiled forward.
        """
        self.has_pending_backward = False
        if self._recompute_detector.watching:
            self._recompute_detector.stop()
        self._output_gradients.finish_backward()

    def switch_off_output_gradients(self) -> None:
        """Stop the capture of output gradients only."""
        self._output_gradients.switch_off()

    def detach(self) -> None:
        """Detach all hooks, when the forward has ended or the hook is closed."""
        self._now = self.step = None
        self._running = 0
        if self._output_gradients.attached:
            self._output_gradients.detach()
        if self._recompute_detector.watching:
            self._recompute_detector.stop()
        if self._variant.sites:
            self._variant.leave()
        take_off(self._attached, self._unhook)
        take_off(self.end_attached, self._unhook_end)
        if self._inner_attached:
            take_off(self._inner_attached, self._unhook, self._unhook_end)

    def _hook_set(self, view: ModelView, plan: Plan, also: Plan | None) -> HookSet:
        """Return the hooks for this plan; at the first call also hooks on modules that may be selected."""
        if also is not None:
            return self._hook_set_with(view, plan, also)
        mode = self._recorder.now.mode
        known: tuple[ModelView, HookSet] | None = plan.cache.get(("hooks", mode, view.root_name))
        if known is not None and known[0] is view:
            return known[1]
        trial = plan.cache.pop(("trial", mode, view.root_name), None)
        if trial is not None and trial[0] is view:
            useful = {
                module_hook.name
                for module_hook in trial[1].hooks
                if module_hook.useful or not module_hook.called
            } | self._unhookable.ever_excluded
            hook_set: HookSet = trial[1].filtered(lambda module_hook: module_hook.name in useful)
        elif waits_for_names(plan, view):
            hook_set = self._select(view, plan, everything=True)
            plan.cache["trial", mode, view.root_name] = (view, hook_set)
            return hook_set
        else:
            hook_set = self._select(view, plan, everything=False)
        plan.cache["hooks", mode, view.root_name] = (view, hook_set)
        return hook_set

    def _hook_set_with(self, view: ModelView, plan: Plan, also: Plan) -> HookSet:
        """Return one set of hooks for both plans, for the modules that either plan selects."""
        key = ("hooks with", view.root_name)
        known: tuple[ModelView, Plan, HookSet] | None = plan.cache.get(key)
        if known is None or known[0] is not view or known[1] is not also:
            everything = waits_for_names(also, view)
            hook_set = self._select(view, plan, everything=everything, also=also)
            known = plan.cache[key] = (view, also, hook_set)
        return known[2]

    def _select(self, view: ModelView, plan: Plan, *, everything: bool, also: Plan | None = None) -> HookSet:
        def may_be_taken(module: Module, kind: TensorKind) -> bool:
            return may_hook(plan, module, kind) or (also is not None and may_hook(also, module, kind))

        before: list[ModuleHook] = []
        after: list[ModuleHook] = []
        root_input_hook = None
        for module in view.modules:
            is_root = module is view.modules[0]
            if everything or may_be_taken(module, TensorKind.INPUT):
                module_hook = self._new_hook(module, TensorKind.INPUT, plan, also, is_root=is_root)
                if is_root:
                    root_input_hook = module_hook
                else:
                    before.append(module_hook)
            own_loss = is_root and (also or plan).may_take(TensorKind.LOSS)
            if everything or own_loss or may_be_taken(module, TensorKind.OUTPUT):
                after.append(self._new_hook(module, TensorKind.OUTPUT, plan, also, is_root=is_root))
        return HookSet(before, after, root_input_hook) or NO_HOOKS

    def _new_hook(
        self, module: Module, kind: TensorKind, plan: Plan, also: Plan | None, **options: Any
    ) -> ModuleHook:
        site = self._sites.at(prefix_of(module, kind)) if also is not None else None
        if self.override is not None and kind is TensorKind.OUTPUT:
            module_hook = OverriddenModuleHook(
                module, kind, plan, self._recorder, self._fault_ref, site, **options
            )
            module_hook.override = self.override
            return module_hook
        return ModuleHook(module, kind, plan, self._recorder, self._fault_ref, site, **options)

    def _put_on_allowed(self, view: ModelView, plan: Plan, hook_set: HookSet) -> HookSet:
        """Attach the hooks one by one. Modules that accept no hooks are skipped and logged."""
        refused = set()
        for one in hook_set.one_by_one():
            take_off(self._attached, self._unhook)
            try:
                put_on(one, self._key, self._attached)
            except Exception as error:
                module_hook = one.hooks[0]
                what = f"{module_hook.name} ({module_hook.origin})"
                self._warn(f"outputs of {what} cannot be captured: {type(error).__name__}: {error}")
                refused.add(module_hook.name)
        take_off(self._attached, self._unhook)
        hook_set = hook_set.filtered(lambda module_hook: module_hook.name not in refused)
        widened = plan.cache.get(("hooks with", view.root_name))
        if widened is not None:
            plan.cache["hooks with", view.root_name] = (*widened[:2], hook_set)
        for what in ("hooks", "trial"):
            key = (what, self._recorder.now.mode, view.root_name)
            if key in plan.cache:
                plan.cache[key] = (view, hook_set)
        put_on(hook_set, self._key, self._attached)
        return hook_set
