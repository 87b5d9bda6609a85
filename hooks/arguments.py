"""Checks of the arguments that the hooks of all frameworks share. Pure functions, any thread."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tdcore.config.hook_config import HookConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.errors import ConfigError
from tdcore.modes import ModeKeys

__all__ = ["hook_config"]


def hook_config(
    out_dir: str | os.PathLike[str],
    *,
    tensorboard_dir: str | os.PathLike[str] | None,
    save_config: SaveConfig | SaveConfigMode | Mapping[ModeKeys, SaveConfigMode] | None,
    **settings: Any,
) -> HookConfig:
    """Check the arguments that all hooks share, and return them as a HookConfig. Raises ConfigError."""
    if not isinstance(out_dir, (str, os.PathLike)):
        raise ConfigError(f"out_dir must be a folder or URL, such as 'runs/demo'; got {out_dir!r}")
    when = SaveConfig() if save_config is None else SaveConfig.parse(save_config)
    if isinstance(tensorboard_dir, os.PathLike):
        tensorboard_dir = os.fspath(tensorboard_dir)
    return HookConfig(
        out_dir=os.fspath(out_dir), save_config=when, tensorboard_dir=tensorboard_dir, **settings
    )
