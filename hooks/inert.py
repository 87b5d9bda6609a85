"""The Hook of a switched-off tdcore (TDCORE_DISABLED=1): all of its methods do nothing.

It loads no framework, no native code and no writer. A script that creates a hook, registers its model and
saves scalars runs as if tdcore were not installed. Arguments are not checked. Threads: any.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
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
    """Step numbers of a hook that counts no steps."""

    def __init__(self) -> None:
        self.step = -1
        self.mode = ModeKeys.GLOBAL.value
        self.mode_steps = [-1] * (len(ModeKeys) + 1)
        self.included: tuple[str, ...] = ()

    @property
    def now(self) -> _NoSteps:
        """This object, which is also the current step."""
        return self


class Hook(HookState):
    """Replacement of a framework's hook. Nothing is created in out_dir."""

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
        """Return a hook that does nothing."""
        return cls(config.out_dir, **options)

    @classmethod
    def create_from_json_file(
        cls: type[_HookT], json_file_path: str | os.PathLike[str] | None = None, **options: Any
    ) -> _HookT:
        """Return a hook that does nothing. The file is not read."""
        return cls(**options)

    @property
    def out_dir(self) -> str:
        """Folder or URL where a run would be written."""
        return self.config.out_dir

    def set_mode(self, mode: ModeKeys) -> None:
        """Store the mode, for the property `mode`."""
        self._mode = mode.value if isinstance(mode, ModeKeys) else 0  # arguments are not checked

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return nullcontext()

    def set_epoch(self, epoch: int) -> None:
        """Do nothing."""

    def add_collection(self, collection: Collection | CollectionConfig) -> Collection:
        """Add a collection. Its tensors are not saved."""
        return self._collections.add(collection)

    def register_module(self, module: Any) -> None:
        """Do nothing: the module is not changed."""

    register_hook = register_block = register_module

    def register_loss(self, loss_module: Any) -> None:
        """Do nothing: the loss is not changed."""

    def register_optimizer(self, optimizer: Any) -> None:
        """Do nothing: the optimizer is not changed."""

    def register_scaler(self, scaler: object) -> None:
        """Do nothing: the scaler is not changed."""

    def graphing(self, *callables: Any) -> AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return nullcontext()

    def forward_hook(self, module: Any, inputs: Any, outputs: Any) -> None:
        """Do nothing. Never called by tdcore."""

    def step(self) -> None:
        """Do nothing: steps are not counted."""

    def capture_step(self, step: Any = None, **options: Any) -> Any:
        """Return the function of a step, or a decorator that returns it."""
        return _unchanged if step is None else step

    def tap(self, name: str, value: Any) -> Any:
        """Return the value."""
        return value

    def save_scalar(self, name: str, value: Any, *arguments: Any, **options: Any) -> None:
        """Do nothing: the number is not recorded."""

    def save_tensor(
        self, tensor_name: str, tensor_value: Any, collections_to_write: str | Iterable[str] = "default"
    ) -> None:
        """Do nothing: the tensor is not recorded."""

    def record_tensor_value(self, tensor_name: str, tensor_value: Any) -> None:
        """Do nothing: the value is not recorded."""

    def backward_hook(self, tname: str) -> Callable[[Any], None]:
        """Return a function that records nothing."""
        return _nothing

    def flush(self, timeout: timedelta | None = None) -> bool:
        """Return True: there is nothing to write."""
        return True

    def counters(self) -> Counters:
        """Return counters of zeros."""
        return Counters()

    def device_reports(self) -> tuple[DeviceReport, ...]:
        """Return no reports: no device is used."""
        return ()

    def time_spent(self) -> timedelta:
        """Return zero."""
        return timedelta()

    def state_dict(self) -> dict[str, Any]:
        """The state of the last load_state_dict(), so that checkpoints keep it; otherwise "no step yet"."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Store the state for the next checkpoint."""
        self._state = dict(state)

    def close(self) -> None:
        """Do nothing: there is nothing to write."""

    def __enter__(self: _HookT) -> _HookT:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, off by TDCORE_DISABLED>"


def create_from_json_file(json_file_path: str | os.PathLike[str] | None = None, **options: Any) -> Hook:
    """Return a hook that does nothing. The file is not read."""
    return Hook.create_from_json_file(json_file_path, **options)


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None, create_if_not_exists: bool = False
) -> Hook | None:
    """Return the hook of set_hook(), or a new one with create_if_not_exists, or None."""
    return _current[-1] if _current else Hook() if create_if_not_exists else None


def set_hook(custom_hook: Hook) -> None:
    """Store the hook for get_hook()."""
    _current[:] = [custom_hook]


def del_hook() -> None:
    """Remove the hook of set_hook()."""
    _current.clear()


def _unchanged(step: Any) -> Any:
    return step


def _nothing(gradient: Any) -> None:
    return None


_current: list[Hook] = []  # at most one
