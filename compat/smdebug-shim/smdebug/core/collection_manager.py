"""smdebug.core.collection_manager."""

from __future__ import annotations

from tdcore.smd import CollectionManager

__all__ = ["CollectionManager"]
