"""Changes of tensors between two saved steps, as lower bounds from statistics. Pure functions, any thread."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tdcore.rules.measures.updates import change_bounds

__all__ = ["update_ratios"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_COLUMNS = ("count", "min", "max", "mean", "m2", "abs_sum", "square_sum")


def update_ratios(columns: Mapping[str, Floats], tensor: Ints, steps: Ints) -> Floats:
    """A lower bound of each tensor's change since its previous saved step, as WeightUpdateRatio computes it.

    The bound is the least possible L2 norm of the change, divided by the earlier L2 norm and by the number of
    steps.

    Args:
        columns: Numbers by name of the column.
        tensor: Tensor of each row.
        steps: Step of each row.

    Returns:
        One number per row; NaN at the first step of a tensor, and after a tensor of zeros.
    """
    order = np.lexsort([steps, tensor])
    now = {name: columns[name][order] for name in _COLUMNS}
    before = {name: np.roll(values, 1) for name, values in now.items()}
    since = np.diff(steps[order], prepend=0)
    known = np.diff(tensor[order], prepend=-1) == 0
    known &= since > 0
    least, _ = change_bounds(now, before)
    norm = np.sqrt(before["square_sum"])
    known &= (norm > 0) & (now["count"] == before["count"])
    found = np.full(len(steps), np.nan)
    found[order[known]] = least[known] / norm[known] / since[known]
    return found
