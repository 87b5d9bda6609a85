"""Reading: reads the values of one row for a rule. Values that cannot be read are counted as missing.

Threads: the thread that owns the window.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.errors import RunError
from tdcore.rules.columns import Mask
from tdcore.rules.window import Window

__all__ = ["read_values", "readable"]


def read_values(window: Window, row: int, what: str, *, complex_too: bool = False) -> npt.NDArray[Any] | None:
    """The values at one row, read-only. If they cannot be read, returns None and counts the row as missing.

    Args:
        window: The window.
        row: The row.
        what: Description of the tensor, for the reason of the missing row.
        complex_too: If False, complex numbers also count as missing.
    """
    try:
        for _, values in window.read([row]):
            if values.dtype.kind == "c" and not complex_too:
                window.missing(f"{what} holds complex numbers", 1)
                return None
            return values
    except RunError as error:
        window.missing(f"{what} could not be read ({type(error).__name__})", 1)
    return None


def readable(window: Window, wanted: Mask, what: str) -> Mask:
    """The `wanted` rows (which hold a value) whose values were saved; the others are counted as missing."""
    saved = window.columns.present("nbytes")
    window.missing(f"{what} saved without its values", int(np.sum(wanted & ~saved)))
    return wanted & saved
