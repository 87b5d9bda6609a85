"""Class methods that create a hook from a configuration. The hooks of all frameworks have them.

Threads: the training thread.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import Any, TypeVar

from tdcore.config.hook_config import HookConfig
from tdcore.config.hook_json import load_hook_config
from tdcore.hooks.arguments import hook_config

__all__ = ["FromConfiguration", "given_config", "is_given"]

_HookT = TypeVar("_HookT", bound="FromConfiguration")
_given: ContextVar[HookConfig | None] = ContextVar(
    "the configuration of the hook that is being made", default=None
)


def given_config(out_dir: str | os.PathLike[str], **arguments: Any) -> HookConfig:
    """The configuration passed to from_config() during that call, otherwise one made from the arguments.

    Args:
        out_dir: Local folder or URL of the run.
        arguments: Further arguments of arguments.hook_config().

    Raises:
        ConfigError: An argument is invalid.
    """
    return _given.get() or hook_config(out_dir, **arguments)


def is_given() -> bool:
    """Whether from_config() is creating a hook."""
    return _given.get() is not None


class FromConfiguration:
    """Class methods that create a hook from a configuration."""

    @classmethod
    def from_config(cls: type[_HookT], config: HookConfig, **options: Any) -> _HookT:
        """Create a hook from a checked configuration.

        Calls cls(config.out_dir, **options). The configuration replaces all other arguments that a subclass
        passes to its base class.

        Args:
            config: The configuration.
            options: Arguments of the hook that are not part of the configuration.
        """
        token = _given.set(config)
        try:
            return cls(config.out_dir, **options)  # type: ignore[call-arg]  # of the hook
        finally:
            _given.reset(token)

    @classmethod
    def create_from_json_file(
        cls: type[_HookT], json_file_path: str | os.PathLike[str] | None = None, **options: Any
    ) -> _HookT:
        """Create a hook from a JSON file in the format of smdebug.

        Args:
            json_file_path: The file. None: the default paths in tdcore.config.hook_json.
            options: Arguments of the hook that are not part of the configuration.

        Raises:
            ConfigError: The file is missing or invalid.
        """
        return cls.from_config(load_hook_config(json_file_path), **options)
