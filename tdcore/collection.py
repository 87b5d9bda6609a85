"""Deprecated alias of tdcore.config for scripts. Each use of a name raises a DeprecationWarning."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from tdcore import config

if TYPE_CHECKING:
    from tdcore.config import (
        OLDER_REGEX,
        Collection,
        CollectionConfig,
        CollectionKeys,
        CollectionManager,
        ModuleTensors,
    )

__all__ = [
    "OLDER_REGEX",
    "Collection",
    "CollectionConfig",
    "CollectionKeys",
    "CollectionManager",
    "ModuleTensors",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'tdcore.collection' has no attribute {name!r}")
    warnings.warn(
        f"tdcore.collection is now tdcore.config: import {name} from there", DeprecationWarning, stacklevel=2
    )
    value: object = getattr(config, name)
    return value
