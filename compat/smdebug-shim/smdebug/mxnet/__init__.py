"""smdebug.mxnet: the hook for MXNet Gluon."""

from __future__ import annotations

from tdcore.hooks.mxnet import Hook, del_hook, get_hook, set_hook
from tdcore.smd import Collection, CollectionKeys, ReductionConfig, SaveConfig, SaveConfigMode, modes

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
