"""Configuration of a hook: settings as frozen values, and readers of files and environment variables.

save_config, reduction_config, collection_config, hook_config   the values
collection, collection_manager, built_in_collections, pattern_list   collections, which may change
defaults                                                        defaults of td.watch() and `tdcore run`
schema                                                          functions that all readers use
hook_file, hook_json                                            readers of configuration files
settings                                                        environment variables
workers, checks                                                 which workers capture; checks of values

Names load on first use, because `import tdcore` only reads environment variables. This package imports only
text, errors, modes and format of tdcore.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdcore.config.built_in_collections import OLDER_REGEX, CollectionKeys
    from tdcore.config.collection import Collection, ModuleTensors
    from tdcore.config.collection_config import CollectionConfig
    from tdcore.config.collection_manager import CollectionManager
    from tdcore.config.hook_config import HookConfig
    from tdcore.config.reduction_config import ReductionConfig
    from tdcore.config.save_config import SaveConfig, SaveConfigMode

__all__ = [
    "OLDER_REGEX",
    "Collection",
    "CollectionConfig",
    "CollectionKeys",
    "CollectionManager",
    "HookConfig",
    "ModuleTensors",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
]

_HOME = {
    "ALLOWED_NORMS": "reduction_config",
    "ALLOWED_REDUCTIONS": "reduction_config",
    "DEFAULT_SAVE_INTERVAL": "save_config",
    "OLDER_REGEX": "built_in_collections",
    "Collection": "collection",
    "CollectionConfig": "collection_config",
    "CollectionKeys": "built_in_collections",
    "CollectionManager": "collection_manager",
    "HookConfig": "hook_config",
    "ModuleTensors": "collection",
    "ReductionConfig": "reduction_config",
    "SaveConfig": "save_config",
    "SaveConfigMode": "save_config",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'tdcore.config' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"tdcore.config.{home}"), name)
    globals()[name] = value
    return value
