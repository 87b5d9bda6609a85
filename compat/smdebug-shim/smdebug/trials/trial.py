"""smdebug.trials.trial."""

from __future__ import annotations

from tdcore.smd import Trial

__all__ = ["Trial"]
