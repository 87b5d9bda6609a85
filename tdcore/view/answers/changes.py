"""Changes of tensors between two saved steps: from values if they are few, else lower bounds from statistics.

The thread of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tdcore.errors import RunError
from tdcore.modes import ModeKeys
from tdcore.rules.measures.updates import change_bounds
from tdcore.sinks import is_remote
from tdcore.view.answers.arrow import numbers

if TYPE_CHECKING:
    from tdcore.trial import Trial
    from tdcore.view.answers.frame import Frame

__all__ = ["exact_update_ratios", "update_ratios"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_COLUMNS = ("count", "min", "max", "mean", "m2", "abs_sum", "square_sum")
_MOST_BYTES = 32 << 20  # of values that are read for one picture
_MOST_ROWS = 20_000


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


def exact_update_ratios(
    trial: Trial, frame: Frame, mode: str, worker: str, bounds: Floats
) -> tuple[Floats, bool]:
    """The ratios of `bounds`, computed from values where both steps have values, if at most 32 MiB are read.

    Args:
        trial: The run. Values in a bucket are not read.
        frame: The rows, with the column nbytes in their table.
        mode: Mode of the rows.
        worker: Worker of the rows; "" for all workers together.
        bounds: Result of update_ratios for these rows.

    Returns:
        The ratios, and whether all of them were computed from values.
    """
    found = bounds.copy()
    exact = np.isnan(bounds)
    size = np.nansum(numbers(frame.table, "nbytes"))
    if size and size <= _MOST_BYTES and len(frame) <= _MOST_ROWS and not is_remote(trial.path):
        for number, name in enumerate(frame.names):
            rows = np.flatnonzero((frame.tensor == number) & ~np.isnan(bounds))
            if rows.size:
                ratios = _ratios(trial, name, mode, worker)
                for row in rows.tolist():
                    ratio = ratios.get(int(frame.steps[row]))
                    if ratio is not None:
                        found[row], exact[row] = ratio, True
    return found, bool(exact.all())


def _ratios(trial: Trial, name: str, mode: str, worker: str) -> dict[int, float]:
    """The ratio at each step with values whose previous saved step also has values."""
    tensor = trial.tensor(name)
    try:
        values = tensor.values(ModeKeys[mode], worker or None)
    except RunError:  # such as copies that differ: the bound is shown
        return {}
    found: dict[int, float] = {}
    saved = tensor.steps(ModeKeys[mode], show_incomplete_steps=True)
    for before, step in pairwise(saved):
        ratio = _ratio(values.get(before), values.get(step))
        if ratio is not None:
            found[step] = ratio / (step - before)
    return found


def _ratio(old: npt.NDArray[Any] | None, new: npt.NDArray[Any] | None) -> float | None:
    """The norm of the change, relative to the earlier norm; None without a finite ratio."""
    if old is None or new is None or old.shape != new.shape or old.dtype.kind == "c" or new.dtype.kind == "c":
        return None
    wide = old.astype(np.float64)
    with np.errstate(all="ignore"):
        ratio = float(np.linalg.norm(new.astype(np.float64) - wide) / np.linalg.norm(wide))
    return ratio if np.isfinite(ratio) else None
