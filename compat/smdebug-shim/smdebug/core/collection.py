"""smdebug.core.collection."""

from __future__ import annotations

from tdcore.smd import Collection, CollectionKeys

__all__ = ["Collection", "CollectionKeys"]
