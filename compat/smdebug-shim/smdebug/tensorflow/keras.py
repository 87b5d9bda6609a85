"""smdebug.tensorflow.keras: the hook by its full name."""

from __future__ import annotations

from smdebug.tensorflow import KerasHook

__all__ = ["KerasHook"]
