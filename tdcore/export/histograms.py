"""Stored counts by powers of two as the buckets of a histogram of magnitudes. Pure functions, any thread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tdcore.format.layout import LOG2_MIN

__all__ = ["LOG2_MAX", "magnitude_buckets"]

Floats = npt.NDArray[np.float64]
LOG2_MAX = 23  # exponent of the last bin


def magnitude_buckets(
    first: int | None, counts: Sequence[int] | None, zeros: int, smallest: float | None, largest: float | None
) -> Floats:
    """Buckets of the magnitudes of the finite elements, shape (buckets, 3): left edge, right edge, count.

    Neighbouring buckets share an edge. Zeros are in the first bucket, which begins at 0. The first and the
    last stored bin also count all smaller and larger magnitudes, so there the edge is the smallest or the
    largest magnitude.

    Args:
        first, counts: Columns `log2_first` and `log2_counts` of the index.
        zeros: Number of zeros.
        smallest, largest: Smallest and largest magnitude of the finite elements.
    """
    numbers = np.asarray(counts if counts is not None else (), dtype=np.float64)
    if first is None or not len(numbers):
        return np.array([[0.0, 2.0**LOG2_MIN, zeros]]) if zeros else np.empty((0, 3))
    exponents = first + np.arange(len(numbers) + 1)
    edges = np.exp2(exponents.astype(np.float64))
    if first == LOG2_MIN and smallest is not None and 0 < smallest < edges[0]:
        edges[0] = smallest
    if exponents[-1] == LOG2_MAX + 1 and largest is not None and largest > edges[-1]:
        edges[-1] = largest
    buckets = np.stack([edges[:-1], edges[1:], numbers], axis=1)
    return np.vstack([[0.0, edges[0], zeros], buckets]) if zeros else buckets
