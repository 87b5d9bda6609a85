"""Payloads: the bytes that rows of the index point at, as NumPy arrays.

Local segments are memory-mapped, and an array is a read-only view of the mapping where its place is
aligned. Nothing of a segment's own header is needed: the row says where the bytes are. What a row says is
checked before it is used: the name of the segment, that the file is inside the run, that the range is
inside the file, that shape, elements, dtype and bytes agree. So nothing outside the run is read and nothing
is allocated that no file backs. The checksum is compared on every read unless that is turned off. Threads:
an object belongs to one reader; the arrays may go anywhere, and keep their mapping alive.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tdcore import layout
from tdcore.errors import ConfigError, RunCorrupt, SinkKeyError
from tdcore.trial.index_file import clipped

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["Payloads", "Piece", "numpy_dtype"]

Array = npt.NDArray[Any]

_NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "C128": "<c16",
}  # fmt: skip
_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_MAX_DIMENSIONS = 32
_MAPPED_SEGMENTS = 64
_HELD_BYTES = 256 << 20  # of segments that are not local


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One part of a tensor, as a row of the index has it.

    shape: of the whole tensor. elements: of this part.
    """

    worker: str
    segment: str
    offset: int
    nbytes: int
    crc32c: int
    elements: int
    element_offset: int


def numpy_dtype(name: str, what: str) -> np.dtype[Any]:
    """NumPy's type for a dtype of the index. `what` names the tensor in messages.

    bfloat16 and the 8-bit floats are those of ml_dtypes, imported on first use. Raises RunCorrupt for an
    unknown name.
    """
    if name in _NUMPY:
        return np.dtype(_NUMPY[name])
    if name not in _ML_DTYPES:
        raise RunCorrupt(
            f"{what} has dtype {clipped(name)}; the format knows {', '.join(sorted({*_NUMPY, *_ML_DTYPES}))}"
        )
    try:
        import ml_dtypes
    except ImportError as error:
        raise ConfigError(f"{what} is {name}, which NumPy lacks: pip install ml_dtypes") from error
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
    return found


class Payloads:
    """Reads payloads of one run.

    sink: where the run is. root: its folder where it is local. verify: whether checksums are compared.
    """

    def __init__(self, sink: Sink, root: Path | None, *, verify: bool = True) -> None:
        self._sink = sink
        self._root = root
        self._real_root = os.path.realpath(root) if root is not None else ""
        self._verify = verify
        self._open: OrderedDict[str, memoryview] = OrderedDict()  # least recently used first

    def read(self, pieces: Sequence[Piece], dtype: str, shape: Sequence[int] | None, what: str) -> Array:
        """The tensor made of all its parts, in order. Read-only.

        what: names the tensor and step in messages. Raises RunCorrupt when anything does not fit,
        SinkKeyError when a segment is gone.
        """
        kind = numpy_dtype(dtype, what)
        dims = _checked_shape(shape, what)
        elements = math.prod(dims)
        position = 0
        for piece in pieces:
            if piece.element_offset != position or piece.elements < 0:
                raise RunCorrupt(
                    f"{what}: a part starts at element {piece.element_offset}, expected {position}"
                )
            position += piece.elements
            if piece.nbytes != piece.elements * kind.itemsize:
                raise RunCorrupt(
                    f"{what}: {piece.elements} elements of {dtype} are {piece.elements * kind.itemsize} "
                    f"bytes, the index says {piece.nbytes}"
                )
        if position != elements:
            raise RunCorrupt(f"{what}: shape {list(dims)} has {elements} elements, its parts have {position}")
        views = [self._bytes(piece, what) for piece in pieces]
        return _assembled(views, kind, dims, what)

    def _bytes(self, piece: Piece, what: str) -> memoryview:
        """The bytes of one part, checked."""
        if piece.elements == 0:
            return memoryview(b"")
        try:
            key = layout.segment_key(piece.worker, piece.segment)
        except ValueError as error:
            raise RunCorrupt(f"{what}: {clipped(str(error), 400)}") from error
        segment = self._segment(key)
        end = piece.offset + piece.nbytes
        if piece.offset < 0 or end > len(segment):
            raise RunCorrupt(
                f"{what}: its bytes are {piece.offset}..{end} of {key}, which has {len(segment)}: "
                "the segment is cut short or the index is damaged"
            )
        view = segment[piece.offset : end]
        if self._verify:
            got = _crc32c(view)
            if got != piece.crc32c:
                raise RunCorrupt(
                    f"{what}: bytes {piece.offset}..{end} of {key} have checksum {got:08x}, "
                    f"the index says {piece.crc32c:08x}: the data is damaged; restore the file from a copy "
                    "(verify=False reads it as it is)"
                )
        return view

    def _segment(self, key: str) -> memoryview:
        """A whole segment, mapped or held."""
        held = self._open.get(key)
        if held is not None and self._still_backed(key, held):
            self._open.move_to_end(key)
            return held
        segment = self._mapped(key) if self._root is not None else memoryview(self._sink.get(key))
        self._open[key] = segment
        while len(self._open) > 1 and self._too_many():
            self._open.popitem(last=False)
        return segment

    def _too_many(self) -> bool:
        if self._root is not None:
            return len(self._open) > _MAPPED_SEGMENTS
        return sum(map(len, self._open.values())) > _HELD_BYTES

    def _still_backed(self, key: str, held: memoryview) -> bool:
        """False when a mapped file was cut since: to touch what is mapped beyond its end is fatal."""
        if self._root is None:
            return True
        try:
            return (self._root / key).stat().st_size >= len(held)
        except OSError:
            return True  # deleted: the mapping keeps the bytes

    def _mapped(self, key: str) -> memoryview:
        assert self._root is not None
        path = self._root / key
        try:
            real = os.path.realpath(path, strict=True)
            if os.path.commonpath([real, self._real_root]) != self._real_root:
                raise RunCorrupt(
                    f"{key} is a link to {real}, outside the run; nothing outside the run is read"
                )
            descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise SinkKeyError(f"{key} is gone") from error
        except OSError as error:
            raise RunCorrupt(f"{key} cannot be opened: {error.strerror}; check its owner and mode") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RunCorrupt(f"{key} is not a file")
            if status.st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ))
        except OSError as error:
            raise RunCorrupt(f"{key} cannot be mapped: {error.strerror}") from error
        finally:
            os.close(descriptor)


def _crc32c(data: memoryview) -> int:
    from tdcore import _core

    return int(_core.crc32c(data))


def _checked_shape(shape: Sequence[int] | None, what: str) -> tuple[int, ...]:
    if shape is None:
        raise RunCorrupt(f"{what} has a payload but no shape")
    if len(shape) > _MAX_DIMENSIONS or any(size is None or size < 0 for size in shape):
        raise RunCorrupt(f"{what} has shape {clipped(str(list(shape)[:40]))}, which no tensor has")
    return tuple(shape)


def _assembled(views: Sequence[memoryview], kind: np.dtype[Any], dims: tuple[int, ...], what: str) -> Array:
    """One array from the bytes of the parts: a view where there is one aligned part, else a copy."""
    try:
        if len(views) == 1 and len(views[0]):
            flat: Array = np.frombuffer(views[0], dtype=np.uint8)
            array = flat.view(kind) if flat.ctypes.data % kind.alignment == 0 else flat.copy().view(kind)
        else:
            flat = np.empty(sum(map(len, views)), dtype=np.uint8)
            position = 0
            for view in views:
                flat[position : position + len(view)] = np.frombuffer(view, dtype=np.uint8)
                position += len(view)
            array = flat.view(kind)
        if kind == np.bool_ and len(flat) and int(flat.max()) > 1:
            raise RunCorrupt(f"{what} is BOOL but has a byte of {int(flat.max())}")
        array = array.reshape(dims)
    except ValueError as error:
        raise RunCorrupt(f"{what} has shape {list(dims)}, which NumPy refuses: {error}") from error
    array.flags.writeable = False
    return array
