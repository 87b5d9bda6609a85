"""to_cupy: copy values of a run into a CuPy array on a GPU.

The first call imports CuPy. The bytes are copied through two pinned buffers of bounded size: the driver
copies from one buffer while the other is filled from the file. A tensor of many gigabytes therefore does not
need pinned memory of its own size. The copies run on the current CuPy stream, and the call returns when they
are complete. Threads: any.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.errors import ConfigError

__all__ = ["checked_device", "to_cupy"]

_PIECE_BYTES = 16 << 20
_BFLOAT16_SINCE = 14  # major version of CuPy
_INSTEAD = "value(step) without device returns a NumPy array"


def checked_device(device: str | None) -> int | None:
    """The number in "cuda" (0) or "cuda:N"; None for None. Raises ConfigError for anything else."""
    if device is None:
        return None
    found = re.fullmatch(r"cuda(?::(\d{1,4}))?", device) if isinstance(device, str) else None
    if found is None:
        raise ConfigError(f"device must be None (NumPy), 'cuda' or 'cuda:N' (CuPy), got {device!r}")
    return int(found[1] or 0)


def to_cupy(values: npt.NDArray[Any], device: int, what: str) -> Any:
    """A CuPy array of the same shape, dtype and bits.

    Args:
        values: The values.
        device: Number of the device.
        what: Tensor and step, for messages.

    Raises:
        ConfigError: CuPy is missing, does not have the dtype, or there is no such device.
        MemoryError: The device does not have enough memory (CuPy's OutOfMemoryError).
    """
    cupy = _cupy(what)
    _check_dtype(cupy, values.dtype, what)
    try:
        with cupy.cuda.Device(device):
            array = cupy.empty(values.shape, dtype=values.dtype)
            if values.nbytes:
                _copy(cupy, array, values.reshape(-1).view(np.uint8))
            return array
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ConfigError(
            f"{what} cannot be put on device cuda:{device}: {error}; {_INSTEAD}; see `tdcore doctor`"
        ) from error


def _cupy(what: str) -> Any:
    try:
        import cupy
    except ImportError as error:
        raise ConfigError(
            f"{what} on a GPU is a CuPy array, and CuPy cannot be imported ({error}): pip install "
            f'"tdcore-capture[cupy]" (CUDA 13) or cupy-cuda12x (CUDA 12); {_INSTEAD}'
        ) from error
    return cupy


def _check_dtype(cupy: Any, dtype: np.dtype[Any], what: str) -> None:
    """Raise ConfigError for a type that CuPy lacks, whose arrays would fail at the first operation."""
    if dtype.isbuiltin == 1:
        return
    if dtype.name == "bfloat16" and int(str(cupy.__version__).split(".")[0]) >= _BFLOAT16_SINCE:
        return
    more = f" (CuPy has bfloat16 from {_BFLOAT16_SINCE} on)" if dtype.name == "bfloat16" else ""
    raise ConfigError(
        f"{what} is {dtype.name}, which CuPy {cupy.__version__} lacks{more}; {_INSTEAD}, and "
        "cupy.asarray(tensor.value(step).astype('float32')) has the same values"
    )


def _copy(cupy: Any, array: Any, source: npt.NDArray[np.uint8]) -> None:
    """Copy all bytes of the source into the array, in pieces through two pinned buffers."""
    stream = cupy.cuda.get_current_stream()
    size = min(_PIECE_BYTES, source.nbytes)
    buffers = [cupy.cuda.alloc_pinned_memory(size) for _ in range(1 if size == source.nbytes else 2)]
    copied: list[Any] = [None, None]
    for number, start in enumerate(range(0, source.nbytes, size)):
        at = number % 2
        piece = source[start : start + size]
        if copied[at] is not None:
            copied[at].synchronize()
        np.frombuffer(buffers[at], np.uint8, piece.nbytes)[:] = piece
        pinned = ctypes.c_void_p(buffers[at].ptr)
        (array.data + start).copy_from_host_async(pinned, piece.nbytes, stream)
        copied[at] = stream.record()
    stream.synchronize()  # before CuPy's pool can reuse the buffers
