"""Reading: the values of one row for a rule; what cannot be read is counted as missing, and judging goes on.

Any thread that owns the window.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.errors import RunError
from tdcore.rules.window import Mask, Window

__all__ = ["read_values", "readable"]


def read_values(window: Window, row: int, what: str, *, complex_too: bool = False) -> npt.NDArray[Any] | None:
    """The values at one row, read-only; None, counted in the window, where they cannot be read.

    what: the tensor in words, for the count. complex_too: False counts complex numbers as not judged.
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
    """Those of `wanted` (rows that hold a value) whose values were saved; the others are counted."""
    saved = window.columns.present("nbytes")
    window.missing(f"{what} saved without its values", int(np.sum(wanted & ~saved)))
    return wanted & saved
