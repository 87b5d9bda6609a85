"""Finds what a script has made and not shown to the hook: optimizers, gradient scalers."""

from __future__ import annotations

import gc
from itertools import compress
from typing import Any

__all__ = ["living"]


def living(kind: type) -> list[Any]:
    """All objects of a class and of its subclasses that are alive. Takes some 10 ms for 100,000 objects.

    Types are looked at before objects, since a program has few, and no Python runs for each object.
    """
    objects = gc.get_objects()
    kinds = {found for found in set(map(type, objects)) if issubclass(found, kind)}
    return list(compress(objects, map(kinds.__contains__, map(type, objects)))) if kinds else []
