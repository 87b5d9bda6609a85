"""Which modules carry taps, and when: only around the steps that save what they give.

A sleeping hook costs 1.6 us per module call, so between saved steps modules carry none: `attach` puts taps on
the modules whose names a collection asks for when the root's first forward of a saved step begins, `detach`
takes them off when an evaluation's forward ends, or when the training step is over (driver.py). Values are
captured inside the tap (tap.py), so a later in-place operation (ReLU(inplace=True)) changes nothing.

Threads: attach and detach in the training thread; taps run in any thread. Keeps no module alive.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import repeat
from operator import methodcaller, setitem
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tdcore.format.layout import TensorKind
from tdcore.hooks.clock import Stamp
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.bodies import Untraced
from tdcore.hooks.pytorch.bypass import Bypass
from tdcore.hooks.pytorch.compiled import CompiledRoot, SecondVariant, Sites
from tdcore.hooks.pytorch.model import ModelView, Module
from tdcore.hooks.pytorch.output_gradients import OutputGradients
from tdcore.hooks.pytorch.recompute import Recompute
from tdcore.hooks.pytorch.tap import EndTap, Fault, OverriddenTap, Override, Tap, prefix_of
from tdcore.hooks.recorder import Recorder

__all__ = ["Arguments", "Attached", "Choice", "Taps", "may_take", "put_on", "take_off"]

_OUTPUT_GRADIENT = TensorKind.OUTPUT_GRADIENT
_CANDIDATES = 4  # how many outputs a module may have before its names are first seen


_call: Callable[[Any], Any] = weakref.ref.__call__
_HOOKS, _PRE_HOOKS, _WITH_KWARGS = "_forward_hooks", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"


class Choice:
    """The taps of one plan on one set of modules, by where they go. own: of the root's input, if any.

    The root's input tap cannot be put on: its pre-hooks are running when taps are attached.
    taps: all of them. entries: what goes where; modules, their dictionaries of hooks, values. Never changes.
    """

    __slots__ = ("after", "before", "entries", "own", "taps")

    def __init__(self, before: list[Tap], after: list[Tap], own: Tap | None = None) -> None:
        self.before = before
        self.after = after
        self.own = own
        self.taps = [*before, *after, *filter(None, [own])]
        pre, post = [tap.module for tap in before], [tap.module for tap in after]
        where = [_PRE_HOOKS] * len(pre) + [_WITH_KWARGS] * len(pre) + [_HOOKS] * len(post)
        what: list[object] = [*before, *before, *after]  # a tap as a flag is left out of pickles, too
        self.entries = [*pre, *pre, *post], where, what

    def one_by_one(self) -> list[Choice]:
        """Each tap that goes on a module, alone."""
        return [Choice([tap], []) for tap in self.before] + [Choice([], [tap]) for tap in self.after]

    def only(self, keep: Callable[[Tap], bool]) -> Choice:
        """Those that are to be kept."""
        own = self.own if self.own is not None and keep(self.own) else None
        return Choice(list(filter(keep, self.before)), list(filter(keep, self.after)), own) or _NOBODY

    def __bool__(self) -> bool:
        return bool(self.taps)


_NOBODY = Choice([], [])

Attached = list[dict[Any, Any]]  # dictionaries of modules that hold one of our keys
Unhook = Callable[[dict[Any, Any]], object]  # takes that key out
Arguments = tuple[tuple[object, ...], Mapping[str, object]]  # positional and keyword ones of a call


class Taps:
    """All taps of one hook. fault: BaseHook._fault. end: called when the root's forward has ended."""

    def __init__(
        self,
        recorder: Recorder,
        fault: Fault,
        end: weakref.WeakMethod[Callable[[], None]],
        warn: Callable[[str], None],
        notes: dict[str, Any],
        compiled: CompiledRoot,
    ) -> None:
        self._off = False
        self.override: Override | None = None  # forward_hook() of a subclass of Hook
        self._bypass = Bypass(notes)
        self._compiled = compiled
        self._output_gradients = OutputGradients(recorder, fault, notes)
        self._recompute = Recompute(notes)
        self.unsettled = False  # settle() has something to do
        self._now: tuple[Choice, ModelView] | None = None  # on the modules while the root's forward runs
        self._warn = warn
        self._recorder = recorder
        self._fault_ref = fault
        self.end_tap = EndTap(end, fault)
        # Ids of hooks are unique in the process; a module can carry one of each of these.
        self._key, self._end_key = (RemovableHandle(OrderedDict()).id for _ in range(2))
        keys = self._key, self._end_key
        self._unhook, self._unhook_end = (methodcaller("pop", key, None) for key in keys)
        self._sites = Sites(Untraced(notes))
        self._variant = SecondVariant()
        self._attached: Attached = []
        self._standing: Attached = []  # of the module inside a wrapped root that is called itself
        self.end_attached: Attached = []  # not empty: the root tells when it ends
        self.step: Stamp | None = None  # that modules carry taps for
        self._running = 0  # calls of the root that have not ended, while modules carry taps

    def switch_off(self) -> None:
        """Captures nothing from now on; still tells when the root's forward ends."""
        self._off = True
        self._output_gradients.switch_off()
        self._variant.leave()
        take_off(self._attached, self._unhook)
        list(map(self._unhook, self._standing))

    @property
    def is_on(self) -> bool:
        """Whether modules carry taps now, or the root tells when it ends."""
        return bool(self._attached or self.end_attached)

    # Modules ----------------------------------------------------------------------------------------------

    def attach(
        self,
        root: nn.Module,
        view: ModelView,
        plan: Plan,
        arguments: Arguments | None,
        *,
        watch_end: bool,
        also: Plan | None = None,
    ) -> None:
        """The root's first forward of a saved step begins. arguments: its positional and keyword ones.

        None: compiled code brings them to take_own(), or another module than the root is called. also:
        modules that this plan would tap are tapped as well, so that there are as few sets of tapped modules
        as may be.
        """
        if self._now is not None or self._recompute.watching:
            self.detach()  # the last forward ended without telling
        choice = _NOBODY
        if not self._off:
            choice = self._choice(view, plan, also)
            if view is not self._bypass.view:
                self._bypass.look_at(view)
            if self._bypass.layers:
                choice = self._bypass.willing(choice, plan, in_any_mode=arguments is None)
        try:
            try:
                put_on(choice, self._key, self._attached)
            except Exception:
                choice = self._put_willing(view, plan, choice)
            if _OUTPUT_GRADIENT in plan.kinds and not self._off:
                self._output_gradients.attach(view, plan, self._bypass.resting)
                if self._output_gradients.attached:
                    self.unsettled = watch_end = True
            if also is not None:
                self._variant.enter(choice.taps, root)
            if watch_end or choice is not _NOBODY:
                hooks: dict[Any, Any] = root._forward_hooks
                always: dict[Any, Any] = root._forward_hooks_always_called
                self.end_attached = [hooks, always]
                hooks[self._end_key] = self.end_tap
                always[self._end_key] = self.end_tap
        except BaseException:
            self.detach()
            raise
        self._now = choice, view
        self._running = 0 if arguments is None else 1
        self.step = self._recorder.now.stamp
        if choice.own is not None and arguments is not None:
            choice.own(root, *arguments)

    def stand_in(self, inner: nn.Module | None) -> None:
        """The module inside a wrapped root is called itself: its outputs are those of the root.

        None: the root is.
        """
        take_off(self._standing, self._unhook, self._unhook_end)
        if inner is None:
            return
        hooks: dict[Any, Any] = inner._forward_hooks
        always: dict[Any, Any] = inner._forward_hooks_always_called
        self._standing += [hooks, always]
        choice, _ = self._now or (_NOBODY, None)
        inside = next((tap for tap in choice.after if tap.is_root), None)
        if inside is not None:
            hooks[self._key] = inside
        if self.end_attached:
            hooks[self._end_key], always[self._end_key] = self.end_tap, True

    def input_tap(self, module: nn.Module) -> Tap | None:
        """The tap of a module's input that it carries now."""
        tap = module._forward_pre_hooks.get(self._key)
        return tap if isinstance(tap, Tap) else None

    def output_tap(self, module: nn.Module) -> Tap | None:
        """The tap of a module's outputs that it carries now."""
        tap = module._forward_hooks.get(self._key)
        return tap if isinstance(tap, Tap) else None

    @property
    def own(self) -> Tap | None:
        """What takes the root's input in the running step."""
        return self._now[0].own if self._now is not None else None

    def take_own(self, values: list[torch.Tensor], ends: str) -> None:
        """Captures the root's input, which compiled code brings."""
        own = self.own
        if own is not None and ends:
            own.take(values, ends)

    def begin_call(self, root: nn.Module, arguments: Arguments | None) -> None:
        """The root is called once more in the step that modules carry taps for."""
        if arguments is not None:
            self._running += 1
        own = self.own
        if own is not None and arguments is not None:
            own(root, *arguments)

    def forward_ended(self, *, keep: bool = False, always: bool = True) -> None:
        """The root's forward has ended: also notes which modules it did not call.

        keep: taps stay on modules that were not called yet in any forward; always: on all. A forward that was
        called inside of another forward of the root (Lightning's ddp) ends nothing.
        """
        self._running = max(self._running - 1, 0)
        if self._running:
            return
        now = self._now
        if now is None or self._off:
            self.detach()
            return
        choice, view = now
        self._bypass.forward_ended(choice, view, self._recorder.now.calls)
        if not keep or self._variant.sites or not (always or self._bypass.some_waiting):
            self.detach()
        recompute = self._recompute
        # Compiled code asks for no hook, and one more would make another variant of it.
        if recompute.known is not view and not self._compiled.met and recompute.watch(view, self._bypass.shy):
            self.unsettled = True

    def end_step(self) -> bool:
        """The step is over. Whether modules were called after the root's forward had ended."""
        found = False
        if self._now is not None and self._bypass.some_waiting and not self._off:
            found = self._bypass.forward_ended(*self._now, self._recorder.now.calls)
        self.detach()
        return found

    def settle(self) -> None:
        """The step is over: what was to be seen in its backward was seen, or was not there.

        Taps stay: they may have been put on already for a forward that is compiled.
        """
        self.unsettled = False
        if self._recompute.watching:
            self._recompute.stop()
        self._output_gradients.settle()

    def switch_off_output_gradients(self) -> None:
        """Leaves the rest on."""
        self._output_gradients.switch_off()

    def detach(self) -> None:
        """The hook is closed, or the forward ended, also one that did not tell."""
        self._now = self.step = None
        self._running = 0
        if self._output_gradients.attached:
            self._output_gradients.detach()
        if self._recompute.watching:
            self._recompute.stop()
        if self._variant.sites:
            self._variant.leave()
        take_off(self._attached, self._unhook)
        take_off(self.end_attached, self._unhook_end)
        if self._standing:
            take_off(self._standing, self._unhook, self._unhook_end)

    def _choice(self, view: ModelView, plan: Plan, also: Plan | None) -> Choice:
        """Who is tapped under this plan. The first time, modules that may turn out to matter are, too."""
        if also is not None:
            return self._choice_with(view, plan, also)
        mode = self._recorder.now.mode
        known: tuple[ModelView, Choice] | None = plan.cache.get(("taps", mode, view.root_name))
        if known is not None and known[0] is view:
            return known[1]
        trial = plan.cache.pop(("trial", mode, view.root_name), None)
        if trial is not None and trial[0] is view:
            useful = {tap.name for tap in trial[1].taps if tap.useful or not tap.called} | self._bypass.spared
            choice: Choice = trial[1].only(lambda tap: tap.name in useful)
        elif _waits_for_names(plan, view):
            choice = self._choose(view, plan, everything=True)
            plan.cache["trial", mode, view.root_name] = (view, choice)
            return choice
        else:
            choice = self._choose(view, plan, everything=False)
        plan.cache["taps", mode, view.root_name] = (view, choice)
        return choice

    def _choice_with(self, view: ModelView, plan: Plan, also: Plan) -> Choice:
        """Who is tapped under either plan, and under the one as under the other."""
        key = ("taps with", view.root_name)
        known: tuple[ModelView, Plan, Choice] | None = plan.cache.get(key)
        if known is None or known[0] is not view or known[1] is not also:
            everything = _waits_for_names(also, view)
            choice = self._choose(view, plan, everything=everything, also=also)
            known = plan.cache[key] = (view, also, choice)
        return known[2]

    def _choose(self, view: ModelView, plan: Plan, *, everything: bool, also: Plan | None = None) -> Choice:
        def may_be_taken(module: Module, kind: TensorKind) -> bool:
            return may_take(plan, module, kind) or (also is not None and may_take(also, module, kind))

        before: list[Tap] = []
        after: list[Tap] = []
        own = None
        for module in view.modules:
            is_root = module is view.modules[0]
            if everything or may_be_taken(module, TensorKind.INPUT):
                tap = self._tap(module, TensorKind.INPUT, plan, is_root=is_root)
                if is_root:
                    own = tap
                else:
                    before.append(tap)
            own_loss = is_root and (also or plan).may_take(TensorKind.LOSS)
            if everything or own_loss or may_be_taken(module, TensorKind.OUTPUT):
                after.append(self._tap(module, TensorKind.OUTPUT, plan, is_root=is_root))
        return Choice(before, after, own) or _NOBODY

    def _tap(self, module: Module, kind: TensorKind, plan: Plan, **options: Any) -> Tap:
        site = self._sites.at(prefix_of(module, kind))
        if self.override is not None and kind is TensorKind.OUTPUT:
            tap = OverriddenTap(module, kind, plan, self._recorder, self._fault_ref, site, **options)
            tap.override = self.override
            return tap
        return Tap(module, kind, plan, self._recorder, self._fault_ref, site, **options)

    def _put_willing(self, view: ModelView, plan: Plan, choice: Choice) -> Choice:
        """Leaves out the modules that take no hooks (some foreign kinds), with a message."""
        refused = set()
        for one in choice.one_by_one():
            take_off(self._attached, self._unhook)
            try:
                put_on(one, self._key, self._attached)
            except Exception as error:
                tap = one.taps[0]
                what = f"{tap.name} ({tap.origin})"
                self._warn(f"outputs of {what} cannot be captured: {type(error).__name__}: {error}")
                refused.add(tap.name)
        take_off(self._attached, self._unhook)
        choice = choice.only(lambda tap: tap.name not in refused)
        widened = plan.cache.get(("taps with", view.root_name))
        if widened is not None:
            plan.cache["taps with", view.root_name] = (*widened[:2], choice)
        for what in ("taps", "trial"):
            key = (what, self._recorder.now.mode, view.root_name)
            if key in plan.cache:
                plan.cache[key] = (view, choice)
        put_on(choice, self._key, self._attached)
        return choice


def put_on(choice: Choice, key: int, attached: Attached) -> None:
    """Straight into the modules' dictionaries: a tenth of the time of register_forward_hook().

    Raises what a module raises that takes no hooks; `attached` then tells what to take off again.
    """
    modules, where, what = choice.entries
    found = list(map(getattr, map(_call, modules), where))
    attached += found
    list(map(setitem, found, repeat(key), what))


def take_off(attached: Attached, *unhooks: Unhook) -> None:
    """Leaves the dictionaries as they were."""
    for unhook in unhooks:
        list(map(unhook, attached))
    attached.clear()


def may_take(plan: Plan, module: Module, kind: TensorKind) -> bool:
    """Whether the plan may take an input or output of the module."""
    if not plan.may_take(kind):
        return False
    what = "input" if kind is TensorKind.INPUT else "output"
    return any(
        plan.takes(f"{module.name}_{what}_{index}", kind, module.origin) for index in range(_CANDIDATES)
    )


def _waits_for_names(plan: Plan, view: ModelView) -> bool:
    """Whether a pattern of the user may mean outputs whose names are only known once they were seen."""
    asking = [collection for collection in plan.collections if collection.is_filled]
    if not asking:
        return False
    names = [parameter.name for parameter in view.parameters]
    names += [f"gradient/{name}" for name in names]
    for module in view.modules:
        names += [f"{module.name}_{what}_{i}" for what in ("output", "input") for i in range(_CANDIDATES)]
        names += [f"output_gradient/{module.name}_output_{i}" for i in range(_CANDIDATES)]
    return any(collection.waits_for_names(names) for collection in asking)
