"""Type of the callback by which a part of a hook reports an error of tdcore. Threads: any."""

from __future__ import annotations

import weakref
from collections.abc import Callable

__all__ = ["FaultHandler"]

# BaseHook._fault(part, error): switches the part off and logs the error once. Weak, so that no part keeps
# the hook alive.
FaultHandler = weakref.WeakMethod[Callable[[str, Exception], None]]
