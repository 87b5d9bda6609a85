"""Whether an object is of a class that may not have been imported. Threads: any."""

from __future__ import annotations

import sys

__all__ = ["is_a"]


def is_a(value: object, module: str, name: str) -> bool:
    """isinstance() without importing the module: an object of its class cannot have come without it."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)
