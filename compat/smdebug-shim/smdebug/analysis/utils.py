"""smdebug.analysis.utils: whether trials read new data."""

from __future__ import annotations

from tdcore.smd import no_refresh, refresh

__all__ = ["no_refresh", "refresh"]
