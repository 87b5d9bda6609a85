"""smdebug.trials.utils."""

from __future__ import annotations

from tdcore.smd import create_trial

__all__ = ["create_trial"]
