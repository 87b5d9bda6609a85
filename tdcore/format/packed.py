"""Lists of integers: as short texts, for JSON in the metadata of a file, and of spans. Pure, any thread."""

from __future__ import annotations

import base64
import zlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Ints", "packed", "spans", "unpacked"]

Ints: TypeAlias = npt.NDArray[np.int64]


def packed(values: Ints) -> str:
    """Numbers as text: base64 of zlib of the differences as little-endian int64."""
    steps = np.diff(values, prepend=np.zeros(1, dtype=np.int64)).astype("<i8")
    return base64.b64encode(zlib.compress(steps.tobytes(), 6)).decode()


def unpacked(text: str, rows: int) -> Ints:
    """The numbers of a list, which has at most one number for each row of the file. Raises ValueError."""
    stream = zlib.decompressobj()
    data = stream.decompress(base64.b64decode(text, validate=True), 8 * rows + 1)
    if not stream.eof or len(data) > 8 * rows or len(data) % 8:
        raise ValueError("a list of numbers in its catalogue is too long, or is cut")
    found: Ints = np.cumsum(np.frombuffer(data, dtype="<i8"), dtype=np.int64)
    return found


def spans(starts: Ints, sizes: Ints) -> Ints:
    """The numbers start .. start + size - 1 of each pair, one after the other."""
    found: Ints = np.arange(int(sizes.sum()), dtype=np.int64)
    found += np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
    return found
