"""smdebug.trials.s3_trial."""

from __future__ import annotations

from tdcore.smd import S3Trial

__all__ = ["S3Trial"]
