"""The tensors of the campaign's trainers: name and step determine each value."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["DTYPES", "Spec", "Tap", "value"]

DTYPES = ("uint8", "float16", "float32", "float64", "int64")
_WANT_ALL = 3  # values and statistics
_KIND = 1


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A tensor that is captured at every step."""

    name: str
    elements: int
    dtype: str

    @property
    def size(self) -> int:
        """Size of one value, in bytes."""
        return self.elements * np.dtype(self.dtype).itemsize


def value(spec: Spec, step: int) -> npt.NDArray[Any]:
    """Return the value of `spec` at `step`."""
    start = np.uint64(zlib.crc32(spec.name.encode()) + 7919 * step)
    words = (np.arange(spec.elements, dtype=np.uint64) * np.uint64(2654435761) + start) % np.uint64(1 << 32)
    if spec.dtype == "float16":
        words %= np.uint64(2000)  # the largest integers that float16 represents exactly
    elif spec.dtype == "uint8":
        words >>= np.uint64(9)
    made: npt.NDArray[Any] = words.astype(spec.dtype)
    return made


class Tap:
    """Captures all tensors of a step into a ring in one call."""

    def __init__(self, ring: Any, specs: Sequence[Spec]) -> None:
        self._ring = ring
        self._specs = specs
        self._ids = np.array([ring.intern(spec.name, _KIND) for spec in specs], dtype=np.uint32)
        self._flags = np.full(len(specs), _WANT_ALL, dtype=np.uint8)

    def __call__(self, step: int) -> int:
        """Capture a step; return the number of tensors that were not kept as requested."""
        values = [value(spec, step) for spec in self._specs]
        return int(self._ring.capture(values, self._ids, self._flags, step, 1, step))
