"""smdebug.pytorch.hook: the hook by its full name."""

from __future__ import annotations

from smdebug.pytorch import Hook

__all__ = ["Hook"]
