"""assembled: one array from the parts of several workers. reduced: the reduction of several workers' arrays.

Pure functions, any thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.errors import TensorUnavailableForStep
from tdcore.format.shard import NORM_OF
from tdcore.trial.shard_boxes import Box, Shard, box_text, intersection, volume

__all__ = ["assembled", "difference", "reduced"]

Array = npt.NDArray[Any]

_UFUNCS = {"sum": np.add, "avg": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}


def assembled(parts: Sequence[tuple[Shard, Array]], what: str) -> Array:
    """The whole array, read-only. The parts must cover the array. A part that is the whole is not copied.

    Args:
        parts: Shard and values of each part.
        what: Tensor and step, for messages.

    Raises:
        TensorUnavailableForStep: Overlapping parts differ.
    """
    for (one, a), (other, b) in _overlapping(parts):
        both = intersection(one.box, other.box)
        if both is not None and (told := difference(_cut(a, one, both), _cut(b, other, both))):
            raise TensorUnavailableForStep(
                f"{what}: {one.worker} and {other.worker} both have {box_text(both)}, and {told}; "
                "value(step, worker=...) returns each",
                reason="copies_differ",
            )
    whole = next((array for shard, array in parts if shard.is_whole), None)
    if whole is None:
        whole = np.empty(parts[0][0].global_shape, dtype=parts[0][1].dtype)
        for shard, array in parts:
            whole[shard.slices] = array
        whole.flags.writeable = False
    return whole


def _overlapping(
    parts: Sequence[tuple[Shard, Array]],
) -> Sequence[tuple[tuple[Shard, Array], tuple[Shard, Array]]]:
    """All pairs of parts that may overlap; none if the sum of their sizes is the size of the whole."""
    cells = sum(volume(shard.box) for shard, _ in parts)
    if cells == volume(tuple((0, size) for size in parts[0][0].global_shape)):
        return []
    return list(combinations(parts, 2))


def _cut(array: Array, shard: Shard, box: Box) -> Array:
    places = zip(box, shard.offset, strict=True)
    cut: Array = array[tuple(slice(low - start, high - start) for (low, high), start in places)]
    return cut


def difference(a: Array, b: Array) -> str:
    """The difference of two arrays of one shape and dtype, in words; "" if they are equal. NaN equals NaN."""
    differs = (a != b) & ~((a != a) & (b != b))
    count = int(np.count_nonzero(differs))
    if not count:
        return ""
    first = np.argwhere(differs)[0].tolist()
    return f"{count} of {a.size} values differ, the first at {first}: {a[tuple(first)]} and {b[tuple(first)]}"


def reduced(reduction: str, parts: Sequence[Array], what: str) -> Array:
    """The reduction of the workers' arrays in order, computed in float64 (integers: in their own type).

    Args:
        reduction: "sum", "avg", ... For "norm_<p>" each part is the p-norm of one worker's elements, and the
            result is the p-norm of all elements.
        parts: The array of each worker.
        what: Tensor and step, for messages.

    Returns:
        A read-only array with the dtype of the parts.

    Raises:
        TensorUnavailableForStep: The reduction is unknown, or not defined for the dtype.
    """
    dtype = parts[0].dtype
    power = _power(reduction)
    known = dtype.kind == "f" if power is not None else reduction in _UFUNCS and dtype.kind != "b"
    if not known or (reduction == "avg" and dtype.kind in "iu"):
        raise TensorUnavailableForStep(
            f"{what} was saved as contributions of workers to the reduction {reduction!r} of {dtype.name}, "
            f"which is not supported (supported: {', '.join(_UFUNCS)}, and {NORM_OF}<p> of floats); "
            "value(step, worker=...) returns each",
            reason="partial",
        )
    wide = {"c": np.dtype(np.complex128), "i": dtype, "u": dtype}.get(dtype.kind, np.dtype(np.float64))
    with np.errstate(all="ignore"):
        if power is not None:
            parts = [_norm(parts, power)]
        total = parts[0].astype(wide)
        for part in parts[1:]:
            total = _UFUNCS[reduction](total, part.astype(wide))
        if reduction == "avg":
            total = total / len(parts)
        found: Array = np.asarray(total).astype(dtype)
    found.flags.writeable = False
    return found


def _power(reduction: str) -> float | None:
    """The p of "norm_<p>"; None for any other reduction."""
    try:
        power = float(reduction.removeprefix(NORM_OF)) if reduction.startswith(NORM_OF) else 0.0
    except ValueError:
        return None
    return power if math.isfinite(power) and power > 0 else None


def _norm(parts: Sequence[Array], power: float) -> Array:
    """The p-norm over workers per element, in float64. Values are scaled, so that no power overflows."""
    sizes = np.abs(np.stack([part.astype(np.float64) for part in parts]))
    largest: Array = sizes.max(axis=0)  # NaN if any size is NaN
    scaled = sizes / np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    norm = largest * np.power(scaled, power).sum(axis=0) ** (1.0 / power)
    found: Array = np.where((largest > 0) & np.isfinite(largest), norm, largest)
    return found
