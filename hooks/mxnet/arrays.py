"""Conversion of MXNet's arrays for the ring: through DLPack without a copy, or to a NumPy array.

MXNet computes asynchronously. Reading an array waits until it is computed. Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mxnet import ndarray

__all__ = ["is_array", "listed_arrays", "readable"]

_CPU = 1  # kDLCPU


class _View:
    """An array in host memory, for readers of DLPack."""

    __slots__ = ("_array",)

    def __init__(self, array: Any) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._array.shape)

    def __array__(self, dtype: Any = None) -> Any:
        return self._array.asnumpy().astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.to_dlpack_for_read()

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0


def is_array(value: object) -> bool:
    """Whether a value is an array with values; a Symbol has none."""
    return isinstance(value, ndarray.NDArray)


def readable(array: Any) -> Any:
    """Return an array in a form that the ring can read. Sparse arrays and arrays of a GPU are copied.

    A value that is not an array is returned unchanged.
    """
    if not is_array(array):
        return array
    if array.stype == "default" and array.context.device_type.startswith("cpu"):
        return _View(array)
    return array.asnumpy()


def listed_arrays(value: Any) -> Iterator[Any]:
    """Yield the arrays in nested lists and tuples, in order."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from listed_arrays(each)
    elif is_array(value):
        yield value
