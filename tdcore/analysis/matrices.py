"""Arrays of any shape as matrices of float64. Stateless functions; any thread."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "centred", "features_last", "samples_first"]

Floats = npt.NDArray[np.float64]


def samples_first(values: Any, what: str = "values") -> Floats:
    """Values as a matrix (samples, features): the first axis is kept, the other axes are joined.

    Args:
        values: Numbers of any real dtype. One axis is one feature.
        what: Name of the argument, for messages.

    Raises:
        ValueError: The array has no axis, or contains NaN or infinity.
    """
    array = _checked(values, what)
    return array.reshape(len(array), math.prod(array.shape[1:]))


def features_last(values: Any, axis: int, what: str = "values") -> Floats:
    """Values as a matrix (all other axes joined, features). axis: the axis of the features.

    Raises ValueError as samples_first(), and if there is no such axis.
    """
    array = _checked(values, what)
    if not -array.ndim <= axis < array.ndim:
        raise ValueError(f"{what} has {array.ndim} axes, so there is no axis {axis}")
    moved = np.moveaxis(array, axis, -1)
    return moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1])


def centred(matrix: Floats) -> Floats:
    """The matrix without the mean of each column. A constant column becomes exactly zero."""
    shifted = matrix - matrix[:1]
    found: Floats = shifted - shifted.mean(axis=0) if len(matrix) else shifted
    return found


def _checked(values: Any, what: str) -> Floats:
    array = np.asarray(values).astype(np.float64)
    if array.ndim == 0:
        raise ValueError(f"{what} is a single number; an array with one axis or more is needed")
    if not np.isfinite(array).all():
        raise ValueError(f"{what} has {int((~np.isfinite(array)).sum())} elements that are NaN or infinite")
    return array
