"""Clock: the number and mode of a hook's current step, and the collections that the step saves.

Independent of the framework. A step is counted once over all modes and once within its mode. As in smdebug,
the step within the mode decides whether the step is saved. A step that saves nothing costs some additions and
comparisons. Steps can interleave: a hook may leave a step, begin another step, and continue the first.
Threads: begin() by one thread at a time; all other methods from any thread.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from tdcore.config.built_in_collections import BUILT_IN, CollectionKeys
from tdcore.config.collection_manager import CollectionManager
from tdcore.config.hook_config import HookConfig
from tdcore.config.save_config import SaveConfigMode
from tdcore.hooks.plan import NameTable, Plan
from tdcore.modes import ModeKeys
from tdcore.text.did_you_mean import did_you_mean

__all__ = ["Clock", "CurrentStep", "StepId", "SuspendedStep"]

_NEVER = sys.maxsize
_TRAINING = (ModeKeys.TRAIN.value, ModeKeys.GLOBAL.value)

Schedule = list[tuple[SaveConfigMode, tuple[str, ...]]]  # steps, and names of the collections saved at them


class StepId(NamedTuple):
    """Number and mode of a step. mode: a ModeKeys value. mode_step: counted within the mode."""

    step: int
    mode: int
    mode_step: int


class SuspendedStep(NamedTuple):
    """A step that can be continued after another step: numbers, plan, and captures per name."""

    step_id: StepId
    plan: Plan | None
    calls: defaultdict[str, int]


class CurrentStep:
    """The current step. It refers to no other object, so every part of a hook can refer to it."""

    __slots__ = ("_expected", "calls", "first", "mode", "mode_step", "step")

    def __init__(self) -> None:
        self.step = self.mode_step = -1
        self.first = 0  # first step of this attempt; earlier captures belong to it
        self.mode = ModeKeys.GLOBAL.value
        self.calls: defaultdict[str, int] = defaultdict(int)  # how often a name was captured in this step
        self._expected = self.calls.copy()  # zeros for names that every saved step counts

    @property
    def step_id(self) -> StepId:
        """The current step. Before the first step, the first step."""
        return StepId(max(self.step, self.first), self.mode, max(self.mode_step, 0))

    def next_call(self, name: str) -> int:
        """Count a capture of the name in this step. Return the number of earlier captures."""
        calls = self.calls
        call = calls[name]  # no call before the assignment, so that no other thread gets the GIL
        calls[name] = call + 1
        return call

    def expect(self, name: str) -> None:
        """Prepare a name that every saved step counts. Counting a prepared name costs a third."""
        self._expected[name] = 0

    def forget_calls(self, *, saved: bool) -> None:
        """Reset the counts when a step begins. Captures before the first step belong to that step.

        saved: whether the step is saved.
        """
        if self.step == self.first and self.calls:
            return
        if saved:
            self.calls = self._expected.copy()
        elif self.calls:
            self.calls = defaultdict(int)


class Clock:
    """Counter of the steps of all modes, with the plan of the current step."""

    def __init__(
        self,
        config: HookConfig,
        collections: CollectionManager,
        names: NameTable,
        warn: Callable[[str], None],
    ) -> None:
        self.now = CurrentStep()
        self.mode_steps = [-1] * (len(ModeKeys) + 1)  # by ModeKeys value
        self._before = list(self.mode_steps)  # mode_steps at the start of this attempt
        self.plan: Plan | None = None  # plan of the current step; None: it saves nothing
        self.last = -1  # the highest global step that has begun
        self.saving = 0  # number of saved steps that have begun
        # Called when collections have changed.
        self.on_refresh: Callable[[], Callable[[], None] | None] = _no_callback
        # Called in the first step of the training from alarm_step on, with its mode and its number.
        self.on_alarm: Callable[[int, int], None] = _no_alarm
        self._alarm_step = _NEVER
        self.included: dict[str, None] = {}  # names of the collections that are saved; an ordered set
        self._config = config
        self._collections = collections
        self._names = names
        self._warn = warn
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._version = -1
        self._next_saved = [0] * (len(ModeKeys) + 1)
        self._schedules: dict[int, Schedule] = {}

    def include(self, name: str) -> None:
        """Save the collection from the next step on."""
        if name not in self.included:
            self._collections.get(name)
            self.included[name] = None
            self._version = -1

    def include_configured(self) -> None:
        """Save the collections that the configuration of the hook names."""
        config = self._config
        self.include(CollectionKeys.LOSSES)  # always saved, as in smdebug
        for entry in config.collections:
            self._collections.add(entry)
            self.include(entry.name)
        if config.include_regex:
            self._collections.get(CollectionKeys.DEFAULT).include(config.include_regex)
            self.include(CollectionKeys.DEFAULT)
        for name in config.include_collections:
            self.include(name)
        if config.save_all:
            self.include(CollectionKeys.ALL)

    def refresh_next(self) -> None:
        """Make the next step read the collections again."""
        self._version = -1

    def set_alarm(self, step: int | None) -> None:
        """Call on_alarm when a training step from this number on begins. None: no call.

        Steps before this number cost nothing more: begin() compares their number with one other number, which
        is the next saved step or this step.
        """
        self._alarm_step = _NEVER if step is None else step
        self._next_saved = [0] * len(self._next_saved)

    def set_first_mode(self, mode: int) -> None:
        """Set the mode of captures before the first step."""
        if not self.begun:
            self.now.mode = mode
            self.now.mode_step = self.mode_steps[mode] + 1

    @property
    def begun(self) -> bool:
        """Whether a step of this attempt has begun."""
        return self.last >= self.now.first

    def resume(self, step: int, mode_steps: Mapping[ModeKeys, int]) -> None:
        """Continue the step numbers of an earlier attempt. Call it before the first step."""
        self.now.step = self.last = step
        self.now.first = step + 1
        for mode in ModeKeys:
            self.mode_steps[mode.value] = self._before[mode.value] = mode_steps.get(mode, -1)
        self.set_first_mode(self.now.mode)

    def begin(self, mode: int) -> Plan | None:
        """Start the next step in the mode (a ModeKeys value). Return its plan; None if it saves nothing."""
        steps = self.mode_steps
        now = self.now
        mode_step = steps[mode] = steps[mode] + 1
        now.step = self.last = self.last + 1
        now.mode = mode
        now.mode_step = mode_step
        if self._collections.version.value != self._version:
            self._refresh()
        if mode_step < self._next_saved[mode]:
            if now.calls:
                now.forget_calls(saved=False)
            self.plan = None
            return None
        plan = self.plan = self._start_saving(mode, mode_step)
        self.saving += plan is not None
        now.forget_calls(saved=plan is not None)
        return plan

    def withdraw(self) -> None:
        """Undo the last begin(), because the step did not run. No tensor of it may have been captured."""
        mode = self.now.mode
        self.saving -= self.plan is not None
        self.plan = None
        self.mode_steps[mode] -= 1
        self.now.step = self.last = self.last - 1
        self.now.mode_step = self.mode_steps[mode]
        self._next_saved[mode] = 0
        self._schedules.pop(mode, None)  # collections may have had their last step

    def may_save_within(self, mode: int, steps: int) -> bool:
        """Whether any of the next steps of the mode (a ModeKeys value) may be saved."""
        if self._collections.version.value != self._version:
            return True
        return self.mode_steps[mode] + steps >= self._next_saved[mode]

    def leave(self) -> SuspendedStep:
        """Suspend the current step and return it. The caller then begins or continues another step."""
        now = self.now
        context = SuspendedStep(StepId(now.step, now.mode, now.mode_step), self.plan, now.calls)
        now.calls = defaultdict(int)
        return context

    @contextmanager
    def during(self, context: SuspendedStep) -> Iterator[None]:
        """Make another step the current one within the block, so that captures belong to it."""
        current = self.leave()
        self.continue_step(context)
        try:
            yield
        finally:
            self.continue_step(current)

    def continue_step(self, context: SuspendedStep) -> None:
        """Make an earlier step the current one again, without counting a step."""
        now = self.now
        now.step, now.mode, now.mode_step = context.step_id
        now.calls, self.plan = context.calls, context.plan

    def may_save_next(self) -> bool:
        """Whether the next step may be saved, if its mode has occurred before."""
        if self._collections.version.value != self._version:
            return True
        met = False
        for mode, step in enumerate(self.mode_steps):
            if step >= 0:
                met = True
                if step + 1 >= self._next_saved[mode]:
                    return True
        return not met

    def plan_now(self) -> Plan:
        """The plan of the current step with the newest collections, also if the step saves nothing."""
        if self._collections.version.value != self._version:
            self._refresh()
        _, current, mode_step = self.now.step_id
        mode = ModeKeys(current)
        return self.plan_of(
            name for name in self.included if self._when(name, mode).should_save_step(mode_step)
        )

    def plan_of(self, names: Iterable[str]) -> Plan:
        """The plan of these collections, for any step."""
        key = tuple(names)
        plan = self._plans.get(key)
        if plan is None:
            members = [self._collections.get(name) for name in key]
            plan = self._plans[key] = Plan(members, self._config.reduction_config, self._names)
        return plan

    def plan_of_all(self) -> Plan:
        """The plan of all saved collections, with their newest members."""
        if self._collections.version.value != self._version:
            self._refresh()
        return self.plan_of(self.included)

    def begun_steps(self, mode: int) -> int:
        """Number of steps of the mode (a ModeKeys value) in this attempt."""
        return self.mode_steps[mode] - self._before[mode]

    def due_modes(self, name: str) -> list[ModeKeys]:
        """The modes in which a step of this attempt had to save the collection."""
        found = []
        for mode in ModeKeys:
            first = self._when(name, mode).next_saved_step(self._before[mode.value] + 1)
            if first is not None and first <= self.mode_steps[mode.value]:
                found.append(mode)
        return found

    def _start_saving(self, mode: int, mode_step: int) -> Plan | None:
        due: tuple[str, ...] = ()
        following = _NEVER
        over = False
        schedule = self._schedules.get(mode) or self._schedule(mode)
        for when, names in schedule:
            if when.should_save_step(mode_step):
                due += names
            after = when.next_saved_step(mode_step + 1)
            if after is None:
                over = True
            elif after < following:
                following = after
        if over:  # each request to capture more leaves a collection without further steps
            self._schedules[mode] = [
                each for each in schedule if each[0].next_saved_step(mode_step + 1) is not None
            ]
        if mode in _TRAINING:
            if mode_step >= self._alarm_step:
                self.on_alarm(mode, mode_step)
            following = min(following, self._alarm_step)
        self._next_saved[mode] = following
        return self._plans.get(due) or self.plan_of(due) if due else None

    def _schedule(self, mode: int) -> Schedule:
        """The saved collections, grouped by their save configuration; usually there is one group."""
        known = self._schedules.get(mode)
        if known is None:
            groups: dict[SaveConfigMode, tuple[str, ...]] = {}
            for name in self.included:
                when = self._when(name, ModeKeys(mode))
                groups[when] = (*groups.get(when, ()), name)
            known = self._schedules[mode] = list(groups.items())
        return known

    def _when(self, name: str, mode: ModeKeys) -> SaveConfigMode:
        when = self._collections.get(name).save_config
        return (when and when.own(mode)) or self._config.save_config.get_save_config(mode)

    def _refresh(self) -> None:
        """Compute the schedules when collections changed, or at the first step."""
        changed = self.on_refresh()
        if changed is not None:
            changed()
        self._version = self._collections.version.value
        self._plans.clear()
        self._schedules.clear()
        self._next_saved = [0] * len(self._next_saved)
        self._names.refresh()
        for collection in self._collections:
            name = collection.name
            if collection.is_filled and name not in self.included:
                self._warn(
                    f"collection {name!r} is not saved: add its name to include_collections, or call "
                    "add_collection()"
                )
            if name in self.included and not collection.selects and name != CollectionKeys.DEFAULT:
                self._warn(
                    f"collection {name!r} is empty: add patterns with get_collection({name!r}).include()"
                    + did_you_mean(name, BUILT_IN)
                )


def _no_callback() -> None:
    return None


def _no_alarm(mode: int, mode_step: int) -> None:
    return None
