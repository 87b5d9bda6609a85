"""Configuration, collections, step numbers and counts of a hook, read-only.

Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Collection as Names
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from tdcore.config.collection import Collection
from tdcore.config.collection_manager import CollectionManager
from tdcore.config.hook_config import HookConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.modes import ModeKeys

if TYPE_CHECKING:  # a disabled hook, which also derives from HookState, loads no native code
    from tdcore.hooks.recorder import Recorder
    from tdcore.session import Session
    from tdcore.session.counters import Counters, DeviceReport

__all__ = ["HookState", "StepCounts"]


class CurrentStep(Protocol):
    """Number and mode (a ModeKeys value) of the current step. See clock.CurrentStep."""

    step: int
    mode: int


class StepCounts(Protocol):
    """Step numbers, and names of the collections that are saved. See clock.Clock."""

    @property
    def now(self) -> CurrentStep:
        """The current step over all modes."""

    @property
    def mode_steps(self) -> list[int]:
        """The current step of each mode, by ModeKeys value."""

    @property
    def included(self) -> Names[str]:
        """Names of the collections that are saved."""


class HookState:
    """The part of a hook that returns its configuration, the numbers of its steps, and counts."""

    config: HookConfig
    _clock: StepCounts
    _mode: int  # ModeKeys value, 0 while the mode follows the model
    _collections: CollectionManager
    _session: Session | None
    _ring: Any
    _recorder: Recorder

    @property
    def out_dir(self) -> str:
        """Folder or URL of the run."""
        return self._session.out_dir if self._session else self.config.out_dir

    @property
    def save_config(self) -> SaveConfig:
        """Steps at which tensors are saved, unless their collection has its own settings."""
        return self.config.save_config

    @property
    def reduction_config(self) -> ReductionConfig | None:
        """Form in which tensors are saved, unless their collection has its own settings."""
        return self.config.reduction_config

    @property
    def include_collections(self) -> list[str]:
        """Names of the saved collections, including those that were added after the start.

        Each call returns a new list, whose changes have no effect. To add a collection, call
        `add_collection()`.
        """
        return list(self._clock.included)

    @property
    def collection_manager(self) -> CollectionManager:
        """All collections of the hook."""
        return self._collections

    def get_collection(self, name: str, create: bool = True) -> Collection:
        """The collection with this name. It is saved if include_collections contains the name.

        create: Create an empty collection if there is none.
        """
        return self._collections.get(name, create)

    def get_collections(self) -> dict[str, Collection]:
        """All collections by name."""
        return self._collections.get_collections()

    @property
    def mode(self) -> ModeKeys:
        """Mode of the current step."""
        return ModeKeys(self._mode or self._clock.now.mode)

    @property
    def global_step(self) -> int:
        """The current step over all modes, from 0. Before the first step: -1, or the checkpoint's."""
        return self._clock.now.step

    @property
    def mode_step(self) -> int:
        """The current step within its mode, from 0; -1 before the first step."""
        return self._clock.mode_steps[self.mode.value]

    @property
    def mode_steps(self) -> dict[ModeKeys, int]:
        """The current step of each mode, from 0; -1 before the first step of the mode. A copy."""
        return {mode: self._clock.mode_steps[mode.value] for mode in ModeKeys}

    def counters(self) -> Counters:
        """Numbers of tensors captured and dropped so far. With dry_run: tensors that would be captured."""
        if self._session is not None:
            return self._session.counters()
        counters: Counters = self._ring.counters()
        return counters

    def device_reports(self) -> tuple[DeviceReport, ...]:
        """The accelerators of captured tensors, with the reason if tdcore cannot use one."""
        from tdcore.hooks.devices import device_reports

        return device_reports(self._ring)

    def time_spent(self) -> timedelta:
        """Time that the training's threads spent in the hook in saved steps, including native calls."""
        return timedelta(microseconds=self._recorder.spent_ns / 1000)
