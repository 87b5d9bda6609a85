"""Search for live objects of a class, and isinstance() without an import. Threads: any."""

from __future__ import annotations

import gc
import sys
from itertools import compress
from typing import Any

__all__ = ["LiveObjects", "isinstance_if_imported", "live_instances"]


class LiveObjects:
    """The live objects of some classes and of their subclasses, searched once, when they are first needed.

    Keeps the objects alive, so it must be a local variable of a short function.
    """

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds
        self._found: list[Any] | None = None

    def instances(self, kind: type) -> list[Any]:
        """Return the objects of one of the classes."""
        if self._found is None:
            self._found = _search(self._kinds)
        return [found for found in self._found if isinstance(found, kind)]


def live_instances(kind: type) -> list[Any]:
    """Return all live objects of a class and of its subclasses."""
    return _search((kind,))


def _search(kinds: tuple[type, ...]) -> list[Any]:
    """Visit all objects that the garbage collector knows, in C. Takes some 10 ms for 100,000 objects."""
    classes: set[type] = set()
    added = list(kinds)
    while added:
        found = added.pop()
        if found not in classes:
            classes.add(found)
            added += type.__subclasses__(found)
    objects = gc.get_objects()
    return list(compress(objects, map(classes.__contains__, map(type, objects))))


def isinstance_if_imported(value: object, module: str, name: str) -> bool:
    """Return isinstance(value, module.name) without importing the module: False if it is not imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)
