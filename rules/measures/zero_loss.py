"""zero_loss_rows: rows of steps whose loss is exactly zero, so that every gradient is zero too.

Hinge and triplet losses are zero if all samples satisfy the margin. Plain values; any thread.
"""

from __future__ import annotations

import numpy as np

from tdcore.rules.columns import Mask
from tdcore.rules.measures.series import group_codes
from tdcore.rules.window import Window

__all__ = ["zero_loss_rows"]

_PLACE = ("attempt", "worker", "step")


def zero_loss_rows(window: Window) -> Mask:
    """Mask of the rows at steps of a worker that have scalar losses, if all these losses are zero."""
    found = np.zeros(len(window), dtype=np.bool_)
    scalar = window.counted & (window.columns.ints("count") == 1)
    losses = np.flatnonzero(window.kind("loss") & window.ok & scalar)
    zero = window.columns.floats("abs_max")[losses] == 0
    if not zero.any():
        return found
    place = group_codes(window.columns, np.arange(len(window)), *_PLACE)
    of_zero = np.setdiff1d(place[losses[zero]], place[losses[~zero]])
    found |= np.isin(place, of_zero)
    return found
