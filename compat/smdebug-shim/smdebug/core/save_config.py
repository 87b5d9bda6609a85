"""smdebug.core.save_config."""

from __future__ import annotations

from tdcore.smd import SaveConfig, SaveConfigMode

__all__ = ["SaveConfig", "SaveConfigMode"]
