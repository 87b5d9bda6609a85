"""smdebug.core.modes."""

from __future__ import annotations

from tdcore.smd import ModeKeys

__all__ = ["ModeKeys"]
