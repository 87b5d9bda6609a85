"""smdebug.pytorch: the hook for PyTorch."""

from __future__ import annotations

from tdcore.smd import (
    Collection,
    CollectionKeys,
    Hook,
    ReductionConfig,
    SaveConfig,
    SaveConfigMode,
    del_hook,
    get_hook,
    modes,
    set_hook,
)

__all__ = [
    "Collection",
    "CollectionKeys",
    "Hook",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "del_hook",
    "get_hook",
    "modes",
    "set_hook",
]
