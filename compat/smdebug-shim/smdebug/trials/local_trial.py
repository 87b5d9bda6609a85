"""smdebug.trials.local_trial."""

from __future__ import annotations

from tdcore.smd import LocalTrial

__all__ = ["LocalTrial"]
