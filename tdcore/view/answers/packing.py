"""Packing of arrays for JSON: base64 of their elements in little-endian order. Pure functions, any thread."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Packed", "pack_doubles", "pack_floats", "pack_ints", "pack_octets"]

Packed = dict[str, str]  # {"type": ..., "base64": ...}

_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def pack_floats(values: npt.NDArray[Any]) -> Packed:
    """Numbers as "f32"; as "f64" if a finite number is outside the normal range of single precision."""
    wide = np.asarray(values, dtype=np.float64)
    size = np.abs(wide[np.isfinite(wide) & (wide != 0)])
    if size.size and (size.min() < _LEAST or size.max() > _MOST):
        return pack_doubles(wide)
    return _packed("f32", wide.astype("<f4"))


def pack_doubles(values: npt.NDArray[Any]) -> Packed:
    """Numbers as "f64"."""
    return _packed("f64", np.asarray(values).astype("<f8"))


def pack_ints(values: npt.NDArray[Any]) -> Packed:
    """Whole numbers as "i32"; numbers that do not fit become the largest that fits."""
    return _packed("i32", np.clip(values, -(2**31), 2**31 - 1).astype("<i4"))


def pack_octets(values: npt.NDArray[Any]) -> Packed:
    """Numbers from 0 to 255 as "u8"."""
    return _packed("u8", np.asarray(values).astype(np.uint8))


def _packed(kind: str, values: npt.NDArray[Any]) -> Packed:
    return {"type": kind, "base64": b64encode(values.tobytes()).decode("ascii")}
