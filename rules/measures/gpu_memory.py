"""memory_percent: the used share of the memory of each GPU. Plain values; any thread."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tdcore.rules.columns import Columns

__all__ = ["memory_percent"]


def memory_percent(gpus: Columns) -> npt.NDArray[np.float64]:
    """The used share of the memory of each GPU, in percent; NaN if it is not known.

    gpus: rows of Samples.gpus.
    """
    total = gpus.floats("memory_total")
    return 100.0 * gpus.floats("memory_used") / np.where(total > 0, total, np.nan)
