"""Entries of a hook's collections in collections.json. Pure functions; the training thread."""

from __future__ import annotations

from collections.abc import Collection as Names
from typing import Any

from tdcore.config.collection_manager import CollectionManager
from tdcore.config.hook_config import HookConfig

__all__ = ["collection_entries"]


def collection_entries(
    collections: CollectionManager, included: Names[str], config: HookConfig
) -> dict[str, dict[str, Any]]:
    """Entries, by name, of collections that are saved or have a tensor. included: the saved collections."""
    entries: dict[str, dict[str, Any]] = {}
    for collection in collections:
        if collection.name not in included and not collection.seen:
            continue
        reduction = collection.reduction_config or config.reduction_config
        when = (collection.save_config or config.save_config).completed(config.save_config)
        entries[collection.name] = {
            "include_regex": collection.include_regex,
            "tensor_names": sorted(collection.seen),
            "save_config": when.to_json_dict(),
            "reduction_config": reduction.to_json_dict() if reduction else None,
            "included": collection.name in included,
        }
        if collection.module_regex:
            entries[collection.name]["module_regex"] = collection.module_regex
    return entries
