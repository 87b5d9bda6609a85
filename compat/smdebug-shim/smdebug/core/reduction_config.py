"""smdebug.core.reduction_config."""

from __future__ import annotations

from tdcore.smd import ReductionConfig

__all__ = ["ReductionConfig"]
