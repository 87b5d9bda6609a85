"""Removal of tdcore's hooks from pickles and deep copies of a module.

`torch.save(model)` stores the hook dictionaries of every module. Without this module, each hook would be
stored as a callable of the standard library that does nothing, and `torch.load()` with its default
`weights_only=True` rejects that callable. The hooks are values of plain OrderedDicts, so the pickle reduction
of this class is extended; the bytes of every other OrderedDict stay the same. Threads: any.
"""

from __future__ import annotations

import contextlib
import copyreg
from collections import OrderedDict
from typing import Any

__all__ = ["InertInCopies", "leave_hooks_out_of_pickles"]


class InertInCopies:
    """Base of the hooks on a module. In copies and pickles of the module, a hook is replaced.

    The replacement is a callable of the standard library that does nothing, so that a saved model loads
    without tdcore.
    """

    __slots__ = ("__weakref__",)

    def __copy__(self) -> Any:
        return contextlib.nullcontext().__exit__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def leave_hooks_out_of_pickles() -> None:
    """Register the reduction until the process ends. A second call has no effect."""
    if OrderedDict not in copyreg.dispatch_table:
        copyreg.pickle(OrderedDict, _reduce)


def _reduce(found: OrderedDict[Any, Any]) -> Any:
    """Reduce a dictionary like its class, without hooks of tdcore."""
    reduced: Any = found.__reduce__()
    function, arguments, state, listed, items = reduced
    if type(next(iter(found), None)) is int and any(isinstance(one, InertInCopies) for one in found.values()):
        items = iter([(key, one) for key, one in found.items() if not isinstance(one, InertInCopies)])
    return function, arguments, state, listed, items
