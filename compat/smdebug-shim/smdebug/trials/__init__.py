"""smdebug.trials: trials of runs, and of recordings of smdebug."""

from __future__ import annotations

from tdcore.smd import LocalTrial, S3Trial, Trial, create_trial

__all__ = ["LocalTrial", "S3Trial", "Trial", "create_trial"]
