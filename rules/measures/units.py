"""Units of a layer: the indices of its output that are units, and the activity of each unit.

Plain functions. Threads: the thread that owns the window.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.columns import Mask
from tdcore.rules.measures.reading import read_values
from tdcore.rules.window import Window

__all__ = ["channels", "pooled", "read_activity", "unit_activity"]

Activity = tuple[npt.NDArray[np.int64], int]


def read_activity(
    window: Window,
    row: int,
    what: str,
    *,
    active: Callable[[npt.NDArray[Any]], Mask],
    unit_axis: int | None,
) -> Activity | None:
    """unit_activity() of the values at one row. Without values, returns None and counts the row as missing.

    Args:
        window: The window.
        row: The row.
        what: Description of the tensor, for the reason of a missing row.
        active: Returns the mask of the active values.
        unit_axis: See unit_activity.
    """
    values = read_values(window, row, what)
    if values is None:
        return None
    if values.ndim == 0 or values.size == 0:
        window.missing(f"{what} is empty or has no axes", 1)
        return None
    try:
        return unit_activity(active(values), unit_axis)
    except ValueError as error:
        window.missing(str(error), 1)
        return None


def unit_activity(active: npt.NDArray[np.bool_], unit_axis: int | None = None) -> Activity:
    """(number of active positions of each unit, number of positions of each unit).

    Args:
        active: Mask with at least one axis, not empty. Axis 0 is the batch, unless it is the only axis. A
            unit is an index over all axes but the batch. With 4 or 5 axes (batch, channel, space) a unit is a
            channel, pooled over batch and space.
        unit_axis: The axis of the units, instead of the default above.

    Raises:
        ValueError: The array has no such axis.
    """
    if active.ndim == 1:
        active = active[np.newaxis]
    if unit_axis is None and active.ndim in (4, 5):
        unit_axis = 1
    if unit_axis is None:
        counts = active.reshape(active.shape[0], -1).sum(axis=0, dtype=np.int64)
        return counts, int(active.shape[0])
    if not -active.ndim <= unit_axis < active.ndim:
        raise ValueError(f"unit_axis {unit_axis} does not exist in a tensor of {active.ndim} axes")
    units = channels(active, unit_axis)
    return units.sum(axis=1, dtype=np.int64), int(units.shape[1])


def channels(values: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """Reshape to (channels, everything else): `axis` becomes the first axis, the other axes are flattened."""
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)


def pooled(memory: MutableMapping[Any, Any], key: object, activity: Activity, steps: int) -> Activity | None:
    """Activity summed over the last `steps` saved steps of a layer; None while there are fewer steps.

    key: key of the layer in `memory`, which stores the earlier steps.
    """
    if steps == 1:
        return activity
    kept: list[Activity] = memory.setdefault(key, [])
    if kept and kept[-1][0].size != activity[0].size:
        kept.clear()  # the shape changed, so the units differ
    kept.append(activity)
    del kept[:-steps]
    if len(kept) < steps:
        return None
    return np.sum([counts for counts, _ in kept], axis=0), sum(share for _, share in kept)
