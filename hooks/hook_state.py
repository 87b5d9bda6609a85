"""What a hook was told and how far its steps are counted, under the older library's names. Read-only.

Threads: the training thread.
"""

from __future__ import annotations

from tdcore.collection import CollectionManager
from tdcore.config import HookConfig, ReductionConfig, SaveConfig
from tdcore.hooks.clock import Clock
from tdcore.modes import ModeKeys

__all__ = ["HookState"]


class HookState:
    """The part of a hook that answers questions about its configuration and its steps."""

    config: HookConfig
    _clock: Clock
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

    @property
    def mode_steps(self) -> dict[ModeKeys, int]:
        """The current step of each mode, from 0; -1 before its first. A copy."""
        return {mode: self._clock.mode_steps[mode.value] for mode in ModeKeys}
