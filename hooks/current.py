"""The current hook of the process: get_hook(), set_hook(), del_hook().

The current hook is the newest open hook: the newest one that was created, or the one that set_hook() made
current. A hook that a script creates is not kept alive by this module, so the hook is deleted with its model.
A hook that get_hook() created or set_hook() made current is kept alive until it is closed or del_hook() is
called. When a hook is closed, the hook before it becomes current again. Threads: any.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tdcore.config.hook_json import find_hook_file
from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from tdcore.hooks.base import BaseHook

__all__ = ["del_hook", "forget", "get_hook", "offer", "remember", "set_hook"]

_log = logging.getLogger("tdcore")
_HookT = TypeVar("_HookT", bound="BaseHook")
_open: list[weakref.ref[BaseHook]] = []  # the newest last
_kept: list[BaseHook] = []
_makers: list[Callable[[], BaseHook]] = []  # at most one


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None,
    create_if_not_exists: bool = False,
    *,
    hook_class: type[_HookT],
) -> _HookT | None:
    """Return the current hook of the class, or None.

    Args:
        json_config_path: File with the configuration of a new hook. None: the path in TDCORE_CONFIG or
            SMDEBUG_CONFIG_FILE_PATH, or smdebug's default path.
        create_if_not_exists: If there is no current hook, create one from that configuration; under
            `tdcore run`, from the configuration of the command. Without a configuration the result is None,
            nothing is recorded, and a warning is logged.
        hook_class: The class of the hook.

    Raises:
        ConfigError: The configuration is invalid.
    """
    for reference in reversed(_open):
        hook = reference()
        if isinstance(hook, hook_class):
            return hook
    if not create_if_not_exists:
        return None
    offered = _makers[0]() if _makers and json_config_path is None else None
    if isinstance(offered, hook_class):
        set_hook(offered)
        return offered
    if json_config_path is None and find_hook_file() is None:
        _log.warning(
            "tdcore: get_hook(create_if_not_exists=True) found no configuration and returns None, so nothing "
            "is recorded; set TDCORE_CONFIG to the path of a JSON file, or create a Hook(out_dir)"
        )
        return None
    made = hook_class.create_from_json_file(json_config_path)  # type: ignore[attr-defined]  # all hooks
    set_hook(made)
    return made  # type: ignore[no-any-return]


def set_hook(custom_hook: BaseHook) -> None:
    """Make a hook current, and keep it alive until it is closed. Raises ConfigError for other objects."""
    from tdcore.hooks.base import BaseHook

    if not isinstance(custom_hook, BaseHook):
        raise ConfigError(f"set_hook needs a hook, got {type(custom_hook).__name__}")
    forget(custom_hook)
    remember(custom_hook)
    _kept.append(custom_hook)


def del_hook() -> None:
    """Make no hook current. Open hooks continue to record until they are closed."""
    _open.clear()
    _kept.clear()


def offer(make: Callable[[], BaseHook]) -> None:
    """Make get_hook() create hooks with `make`, unless its caller passes a path."""
    _makers[:] = [make]


def remember(hook: BaseHook) -> None:
    """Add a new hook. It is not kept alive."""
    _open[:] = [reference for reference in _open if reference() is not None]
    _open.append(weakref.ref(hook))


def forget(hook: BaseHook) -> None:
    """Remove a closed hook."""
    _open[:] = [reference for reference in _open if reference() not in (None, hook)]
    _kept[:] = [kept for kept in _kept if kept is not hook]
