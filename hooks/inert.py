"""The Hook of a switched-off tdcore (TDCORE_DISABLED=1): takes every call, and does nothing.

Loads no framework, no native code and no writer: a script that makes a hook, registers its model and saves
scalars runs as if tdcore were not there. Arguments are not checked. Threads: any.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from tdcore.config.collection import Collection
from tdcore.config.collection_config import CollectionConfig
from tdcore.config.collection_manager import CollectionManager
from tdcore.config.hook_config import HookConfig
from tdcore.hooks.hook_state import HookState
from tdcore.modes import ModeKeys
from tdcore.session.counters import Counters, DeviceReport

__all__ = ["Hook", "create_from_json_file", "del_hook", "get_hook", "set_hook"]

_log = logging.getLogger("tdcore")
_HookT = TypeVar("_HookT", bound="Hook")


class _NoSteps:
    """Step numbers of a hook that counts none."""

    def __init__(self) -> None:
        self.step = -1
        self.mode = ModeKeys.GLOBAL.value
        self.mode_steps = [-1] * (len(ModeKeys) + 1)
        self.included: tuple[str, ...] = ()

    @property
    def now(self) -> _NoSteps:
        """Itself."""
        return self


class Hook(HookState):
    """What a script gets in the place of the hook of its framework. out_dir: nothing is made there."""

    framework: ClassVar[str] = "none"

    def __init__(self, out_dir: str | os.PathLike[str] = "runs", *arguments: Any, **options: Any) -> None:
        self.config = HookConfig(out_dir=os.fspath(out_dir))
        self._collections = CollectionManager()
        self._clock = _NoSteps()
        self._mode = 0
        self._state: dict[str, Any] = {"step": -1, "mode_steps": {mode.name: -1 for mode in ModeKeys}}
        _log.info("tdcore: TDCORE_DISABLED is set: nothing is recorded")

    @classmethod
    def from_config(cls: type[_HookT], config: HookConfig, **options: Any) -> _HookT:
        """A hook that does nothing."""
        return cls(config.out_dir, **options)

    @classmethod
    def create_from_json_file(
        cls: type[_HookT], json_file_path: str | os.PathLike[str] | None = None, **options: Any
    ) -> _HookT:
        """A hook that does nothing. The file is not read."""
        return cls(**options)

    @property
    def out_dir(self) -> str:
        """Where a run would be written."""
        return self.config.out_dir

    def set_mode(self, mode: ModeKeys) -> None:
        """Store the mode, for the property `mode`."""
        self._mode = mode.value if isinstance(mode, ModeKeys) else 0  # arguments are not checked

    def set_epoch(self, epoch: int) -> None:
        """Do nothing."""

    def add_collection(self, collection: Collection | CollectionConfig) -> Collection:
        """Add a collection. Nothing of it is saved."""
        return self._collections.add(collection)

    def register_module(self, module: Any) -> None:
        """Leaves the module as it is."""

    register_hook = register_module

    def register_loss(self, loss_module: Any) -> None:
        """Leaves the loss as it is."""

    def register_optimizer(self, optimizer: Any) -> None:
        """Leaves the optimizer as it is."""

    def register_scaler(self, scaler: object) -> None:
        """Leaves the scaler as it is."""

    def forward_hook(self, module: Any, inputs: Any, outputs: Any) -> None:
        """Is never called, and captures nothing."""

    def step(self) -> None:
        """Counts nothing."""

    def save_scalar(self, name: str, value: Any, *arguments: Any, **options: Any) -> None:
        """Records nothing."""

    def save_tensor(
        self, tensor_name: str, tensor_value: Any, collections_to_write: str | Iterable[str] = "default"
    ) -> None:
        """Records nothing."""

    def record_tensor_value(self, tensor_name: str, tensor_value: Any) -> None:
        """Records nothing."""

    def backward_hook(self, tname: str) -> Callable[[Any], None]:
        """A function that records nothing."""
        return _nothing

    def flush(self, timeout: timedelta | None = None) -> bool:
        """True: nothing is left to be written."""
        return True

    def counters(self) -> Counters:
        """Nothing was captured and nothing dropped."""
        return Counters()

    def device_reports(self) -> tuple[DeviceReport, ...]:
        """No device is used."""
        return ()

    def time_spent(self) -> timedelta:
        """None."""
        return timedelta()

    def state_dict(self) -> dict[str, Any]:
        """What load_state_dict() was given, so that a checkpoint passes it on; else "no step yet"."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keeps the state for the next checkpoint."""
        self._state = dict(state)

    def close(self) -> None:
        """Nothing is left to be written."""

    def __enter__(self: _HookT) -> _HookT:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, off by TDCORE_DISABLED>"


def create_from_json_file(json_file_path: str | os.PathLike[str] | None = None, **options: Any) -> Hook:
    """A hook that does nothing. The file is not read."""
    return Hook.create_from_json_file(json_file_path, **options)


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None, create_if_not_exists: bool = False
) -> Hook | None:
    """The hook that set_hook() was given, or with create_if_not_exists one that does nothing, or None."""
    return _current[-1] if _current else Hook() if create_if_not_exists else None


def set_hook(custom_hook: Hook) -> None:
    """Is kept for get_hook()."""
    _current[:] = [custom_hook]


def del_hook() -> None:
    """Forgets what set_hook() was given."""
    _current.clear()


def _nothing(gradient: Any) -> None:
    return None


_current: list[Hook] = []  # at most one
