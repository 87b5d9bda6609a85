"""Leaves the hooks of tdcore out of pickles and deep copies of a module.

`torch.save(model)` stores the hook dictionaries of every module. Without this, each hook is stored as a
callable of the standard library that does nothing (tap.py), and `torch.load()` with its default
`weights_only=True` refuses that callable. The hooks are values of plain OrderedDicts, so the reduction of
this one class is extended; the bytes of every other OrderedDict stay the same. Threads: any.
"""

from __future__ import annotations

import copyreg
from collections import OrderedDict
from typing import Any

from tdcore.hooks.pytorch.tap import InertInCopies

__all__ = ["leave_hooks_out_of_pickles"]


def leave_hooks_out_of_pickles() -> None:
    """Register the reduction, until the process ends. May be called again."""
    if OrderedDict not in copyreg.dispatch_table:
        copyreg.pickle(OrderedDict, _reduce)


def _reduce(found: OrderedDict[Any, Any]) -> Any:
    """Reduce a dictionary as its class does, without hooks of tdcore."""
    reduced: Any = found.__reduce__()
    function, arguments, state, listed, items = reduced
    if type(next(iter(found), None)) is int and any(isinstance(one, InertInCopies) for one in found.values()):
        items = iter([(key, one) for key, one in found.items() if not isinstance(one, InertInCopies)])
    return function, arguments, state, listed, items
