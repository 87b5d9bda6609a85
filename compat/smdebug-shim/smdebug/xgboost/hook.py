"""smdebug.xgboost.hook: the hook by its full name."""

from __future__ import annotations

from smdebug.xgboost import Hook

__all__ = ["Hook"]
