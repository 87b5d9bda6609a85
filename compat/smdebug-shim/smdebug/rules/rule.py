"""smdebug.rules.rule."""

from __future__ import annotations

from tdcore.smd import Rule

__all__ = ["Rule"]
