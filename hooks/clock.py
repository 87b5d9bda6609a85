"""The step and mode clock of a hook: which step this is, and which collections it saves. Knows no framework.

A step counts once over all modes and once within its mode; whether it is saved goes by the latter, as in the
older library. A step that saves nothing costs some additions and comparisons.
Threads: begin() by one thread at a time; the rest from any thread.
"""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tdcore.collection import CollectionKeys, CollectionManager
from tdcore.config import HookConfig, SaveConfigMode
from tdcore.hooks.plan import NameTable, Plan
from tdcore.modes import ModeKeys

__all__ = ["Clock", "Stamp"]

_NEVER = sys.maxsize


class Stamp(NamedTuple):
    """When something was captured. mode: a ModeKeys value. mode_step: counted within the mode."""

    step: int
    mode: int
    mode_step: int


class Clock:
    """Counts steps and holds the plan of the current one."""

    def __init__(
        self,
        config: HookConfig,
        collections: CollectionManager,
        names: NameTable,
        warn: Callable[[str], None],
    ) -> None:
        self.step = -1
        self.mode = ModeKeys.GLOBAL.value
        self.mode_steps = [-1] * (len(ModeKeys) + 1)  # by ModeKeys value
        self.plan: Plan | None = None  # of the current step; None: it saves nothing
        self.included: dict[str, None] = {}  # names of the collections that are saved; an ordered set
        self._config = config
        self._collections = collections
        self._names = names
        self._warn = warn
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._stamp: Stamp | None = None  # made when first asked for
        self._version = -1
        self._next_saved = [0] * (len(ModeKeys) + 1)
        self._calls: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)

    @property
    def stamp(self) -> Stamp:
        """The current step; step 0 before the first."""
        stamp = self._stamp
        if stamp is None:
            stamp = self._stamp = Stamp(max(self.step, 0), self.mode, max(self.mode_steps[self.mode], 0))
        return stamp

    def include(self, name: str) -> None:
        """The collection is saved from the next step on."""
        if name not in self.included:
            self._collections.get(name)
            self.included[name] = None
            self._version = -1

    def set_first_mode(self, mode: int) -> None:
        """What is captured before the first step belongs to this mode."""
        if self.step < 0:
            self.mode = mode
            self._stamp = None

    def begin(self, mode: int) -> Plan | None:
        """Starts the next step, in the mode (a ModeKeys value). Its plan; None: it saves nothing."""
        steps = self.mode_steps
        mode_step = steps[mode] = steps[mode] + 1
        self.step += 1
        self.mode = mode
        self._stamp = None
        if self._calls:
            self._calls.clear()
        if self._collections.version.value != self._version:
            self._refresh()
        if mode_step < self._next_saved[mode]:
            self.plan = None
        else:
            self.plan = self._start_saving(ModeKeys(mode), mode_step)
        return self.plan

    def plan_now(self) -> Plan:
        """A plan of what the current step saves, also when it saves nothing. Sees the newest collections."""
        if self._collections.version.value != self._version:
            self._refresh()
        mode, mode_step = ModeKeys(self.mode), self.stamp.mode_step
        return self.plan_of(
            name for name in self.included if self._when(name, mode).should_save_step(mode_step)
        )

    def plan_of(self, names: Iterable[str]) -> Plan:
        """The plan of these collections, whatever the step."""
        key = tuple(names)
        plan = self._plans.get(key)
        if plan is None:
            members = [self._collections.get(name) for name in key]
            plan = self._plans[key] = Plan(members, self._config.reduction_config, self._names)
        return plan

    def next_call(self, name: str) -> int:
        """How often the name was asked for in this step already."""
        return next(self._calls[name])

    def _start_saving(self, mode: ModeKeys, mode_step: int) -> Plan | None:
        names = []
        following = _NEVER
        for name in self.included:
            when = self._when(name, mode)
            if when.should_save_step(mode_step):
                names.append(name)
            after = when.next_saved_step(mode_step + 1)
            if after is not None:
                following = min(following, after)
        self._next_saved[mode.value] = following
        return self.plan_of(names) if names else None

    def _when(self, name: str, mode: ModeKeys) -> SaveConfigMode:
        return (self._collections.get(name).save_config or self._config.save_config).get_save_config(mode)

    def _refresh(self) -> None:
        """Collections changed, or this is the first step."""
        self._version = self._collections.version.value
        self._plans.clear()
        self._next_saved = [0] * len(self._next_saved)
        self._names.refresh()
        for collection in self._collections:
            name = collection.name
            if collection.is_filled and name not in self.included:
                self._warn(
                    f"collection {name!r} is not saved: name it in include_collections, or add_collection()"
                )
            if name in self.included and not collection.selects and name != CollectionKeys.DEFAULT:
                self._warn(
                    f"collection {name!r} is empty: give it patterns, get_collection({name!r}).include()"
                )
