"""Objects of imported modules, excluded from searches for live objects and from garbage collections.

A process of pytest has imported all test modules and their libraries: about a million objects. Hooks search
all objects for optimizers, and a full garbage collection visits all objects.
"""

from __future__ import annotations

import gc
from types import CodeType, FunctionType

__all__ = ["codes_of_functions", "freeze"]

_excluded: list[CodeType] = []


def freeze() -> None:
    """Exclude all live objects: gc.get_objects() does not return them, and collections do not visit them."""
    gc.collect()  # excluded garbage would never be removed
    _excluded.extend(_codes_found())
    gc.freeze()


def codes_of_functions() -> list[CodeType]:
    """Return the code of all functions, also of those that are excluded."""
    return _excluded + _codes_found()


def _codes_found() -> list[CodeType]:
    return [found.__code__ for found in gc.get_objects() if type(found) is FunctionType]
