"""The hook that scripts get without passing it around: get_hook(), set_hook(), del_hook().

The current hook is the newest hook that is open: one that was made, or that set_hook() made current. A hook
that was only made is not kept alive, so it ends with its model as always; one that get_hook() made or that
set_hook() was given is kept until it is closed or del_hook() is called. A hook that is closed is no longer
current, and the one before it is again. Threads: any.
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
        json_config_path: The configuration to make a hook from; without it, TDCORE_CONFIG,
            SMDEBUG_CONFIG_FILE_PATH and the older service's place are looked at.
        create_if_not_exists: Make a hook from that configuration when there is no current one; under
            `tdcore run`, from the command's configuration. Without one the result is None, which a warning
            says: nothing is recorded then.
        hook_class: The class of the hook.

    Raises:
        ConfigError: The configuration is there and cannot be used.
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
            "is recorded; set TDCORE_CONFIG to a JSON file, or make a Hook(out_dir)"
        )
        return None
    made = hook_class.create_from_json_file(json_config_path)  # type: ignore[attr-defined]  # of every framework
    set_hook(made)
    return made  # type: ignore[no-any-return]


def set_hook(custom_hook: BaseHook) -> None:
    """Make this hook the current one, and keep it alive until it is closed. Raises ConfigError."""
    from tdcore.hooks.base import BaseHook

    if not isinstance(custom_hook, BaseHook):
        raise ConfigError(f"set_hook takes a hook, got {type(custom_hook).__name__}")
    forget(custom_hook)
    remember(custom_hook)
    _kept.append(custom_hook)


def del_hook() -> None:
    """Forget all hooks that were made so far. They record until they are closed."""
    _open.clear()
    _kept.clear()


def offer(make: Callable[[], BaseHook]) -> None:
    """From now on get_hook() makes the hook with this, unless it is given a path."""
    _makers[:] = [make]


def remember(hook: BaseHook) -> None:
    """The hook was made. It is not kept alive."""
    _open[:] = [reference for reference in _open if reference() is not None]
    _open.append(weakref.ref(hook))


def forget(hook: BaseHook) -> None:
    """The hook was closed."""
    _open[:] = [reference for reference in _open if reference() not in (None, hook)]
    _kept[:] = [kept for kept in _kept if kept is not hook]
