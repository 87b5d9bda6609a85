"""Configuration, collections and step numbers of a hook, as read-only properties.

Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Collection as Names
from typing import Protocol

from tdcore.config.collection import Collection
from tdcore.config.collection_manager import CollectionManager
from tdcore.config.hook_config import HookConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.modes import ModeKeys

__all__ = ["HookState", "StepCounts"]


class CurrentStep(Protocol):
    """Number and mode (a ModeKeys value) of the current step. See clock.StepState."""

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
    """The part of a hook that returns its configuration and the numbers of its steps."""

    config: HookConfig
    _clock: StepCounts
    _mode: int  # ModeKeys value, 0 while it follows the model
    _collections: CollectionManager

    @property
    def save_config(self) -> SaveConfig:
        """When tensors are saved, unless their collection has settings of its own."""
        return self.config.save_config

    @property
    def reduction_config(self) -> ReductionConfig | None:
        """In which form tensors are saved, unless their collection has settings of its own."""
        return self.config.reduction_config

    @property
    def include_collections(self) -> list[str]:
        """Names of the collections that are saved, those that were added after the start included.

        A new list: `add_collection()` adds to the collections, changes of the list do not.
        """
        return list(self._clock.included)

    @property
    def collection_manager(self) -> CollectionManager:
        """All collections of the hook."""
        return self._collections

    def get_collection(self, name: str, create: bool = True) -> Collection:
        """The collection; made empty where there is none. It is saved when include_collections names it."""
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
        """The current step over all modes, from 0; -1 before the first (resumed: that of the checkpoint)."""
        return self._clock.now.step

    @property
    def mode_step(self) -> int:
        """The current step within its mode, from 0; -1 before the first."""
        return self._clock.mode_steps[self.mode.value]

    @property
    def mode_steps(self) -> dict[ModeKeys, int]:
        """The current step of each mode, from 0; -1 before its first. A copy."""
        return {mode: self._clock.mode_steps[mode.value] for mode in ModeKeys}
