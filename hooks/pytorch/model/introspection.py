"""Search for live objects of a class, and isinstance() without an import. Threads: any."""

from __future__ import annotations

import gc
import sys
from itertools import compress
from typing import Any

__all__ = ["isinstance_if_imported", "live_instances"]


def live_instances(kind: type) -> list[Any]:
    """Return all live objects of a class and of its subclasses. Takes some 10 ms for 100,000 objects.

    The set of types is filtered first, because a program has few types; no Python runs for each object.
    """
    objects = gc.get_objects()
    kinds = {found for found in set(map(type, objects)) if issubclass(found, kind)}
    return list(compress(objects, map(kinds.__contains__, map(type, objects)))) if kinds else []


def isinstance_if_imported(value: object, module: str, name: str) -> bool:
    """Return isinstance(value, module.name) without importing the module: False if it is not imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)
