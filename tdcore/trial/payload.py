"""Payloads: reader of the bytes that rows of the index refer to, as NumPy arrays.

Local segments are memory-mapped, remote segments are read in ranges (segments.py). An array whose bytes are
aligned is a read-only view of this memory. The header of a segment is not needed, because the row has the
offset of the bytes. The fields of a row are checked first: the name of the segment; that the file is inside
the run; that the range is inside the file; that shape, elements, dtype and bytes agree. So no file outside
the run is read, and no memory is allocated that is larger than the file. The checksum is compared at every
read, unless `verify` is False. Threads: an object belongs to one reader. Other threads may use the arrays,
which keep their mapping alive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tdcore.errors import ConfigError, RunCorrupt
from tdcore.format import layout
from tdcore.format.documents import clipped
from tdcore.trial.segments import FetchedSegments, MappedSegments, SegmentRange, Segments

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["PayloadPart", "Payloads", "numpy_dtype"]

Array = npt.NDArray[Any]

_NOWHERE = SegmentRange("", 0, 0)
_NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "C128": "<c16",
}  # fmt: skip
_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_MAX_DIMENSIONS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadPart:
    """One part of a tensor, from a row of the index.

    shape: shape of the whole tensor. elements: number of elements in this part.
    """

    worker: str
    segment: str
    offset: int
    nbytes: int
    crc32c: int
    elements: int
    element_offset: int


def numpy_dtype(name: str, what: str) -> np.dtype[Any]:
    """NumPy's type for a dtype of the index.

    bfloat16 and the 8-bit floats are types of ml_dtypes, which is imported at the first use. Raises
    RunCorrupt for an unknown name.

    what: tensor, for messages.
    """
    if name in _NUMPY:
        return np.dtype(_NUMPY[name])
    if name not in _ML_DTYPES:
        raise RunCorrupt(
            f"{what} has dtype {clipped(name)}; the format has {', '.join(sorted({*_NUMPY, *_ML_DTYPES}))}"
        )
    try:
        import ml_dtypes
    except ImportError as error:
        raise ConfigError(f"{what} is {name}, which NumPy lacks: pip install ml_dtypes") from error
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
    return found


class Payloads:
    """Reader of the payloads of one run.

    Args:
        sink: The run.
        root: Folder of a local run; None: a remote run.
        run_id: Id of the run, "" while it is unknown. A local segment of another run is refused.
        verify: Whether checksums are compared.
    """

    def __init__(
        self,
        sink: Sink,
        root: Path | None,
        *,
        run_id: Callable[[], str] = str,
        verify: bool = True,
    ) -> None:
        self._segments: Segments = FetchedSegments(sink) if root is None else MappedSegments(root, run_id)
        self._verify = verify

    def holds(self, piece: PayloadPart) -> bool:
        """Whether a piece can be read without a request."""
        return self._segments.holds(_place(piece))

    def expect(self, pieces: Sequence[PayloadPart]) -> int:
        """Announce pieces that will be read next, in this order. This saves requests for a remote run.

        Errors of a piece are raised when it is read.

        Returns:
            Number of pieces, from the first on, that were fetched. Pass the others later.

        Raises:
            SinkError: The storage failed.
        """
        return self._segments.expect([_place(piece) for piece in pieces])

    def read(
        self, pieces: Sequence[PayloadPart], dtype: str, shape: Sequence[int] | None, what: str
    ) -> Array:
        """The tensor from all its parts, in order. Read-only.

        Args:
            pieces: The parts.
            dtype: Type in the index.
            shape: Shape of the tensor.
            what: Tensor and step, for messages.

        Raises:
            RunCorrupt: The row or the bytes are invalid.
            SinkKeyError: A segment does not exist.
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
                    f"bytes, and the index has {piece.nbytes}"
                )
        if position != elements:
            raise RunCorrupt(f"{what}: shape {list(dims)} has {elements} elements, its parts have {position}")
        if len(pieces) > 1:
            self.expect(pieces)
        views = [self._bytes(piece, what) for piece in pieces]
        return _assembled(views, kind, dims, what)

    def _bytes(self, piece: PayloadPart, what: str) -> memoryview:
        """The bytes of one part, checked."""
        if piece.elements == 0:
            return memoryview(b"")
        try:
            key = layout.segment_key(piece.worker, piece.segment)
        except ValueError as error:
            raise RunCorrupt(f"{what}: {clipped(str(error), 400)}") from error
        place = SegmentRange(key, piece.offset, piece.nbytes)
        view, got = self._checked(place)
        wanted = piece.nbytes, piece.crc32c if self._verify else 0
        if (len(view), got) != wanted and self._segments.forget(place.key):
            view, got = self._checked(place)  # the bytes in memory may be of an earlier run at this place
        where = f"bytes {piece.offset}..{piece.offset + piece.nbytes} of {place.key}"
        if len(view) < piece.nbytes:
            raise RunCorrupt(
                f"{what}: the index refers to {where}, and only {len(view)} of these bytes exist: "
                "the segment is cut short or the index is damaged"
            )
        if self._verify and got != piece.crc32c:
            raise RunCorrupt(
                f"{what}: {where} have checksum {got:08x}, expected {piece.crc32c:08x}: the data is "
                "damaged; restore the file from a copy (verify=False reads it as it is)"
            )
        return view

    def _checked(self, place: SegmentRange) -> tuple[memoryview, int]:
        """The bytes of a place, and their checksum if it is compared."""
        view = self._segments.read(place) if place.offset >= 0 else memoryview(b"")
        return view, _crc32c(view) if self._verify else 0


def _place(piece: PayloadPart) -> SegmentRange:
    """Place of a piece. Raises RunCorrupt if the row is invalid."""
    if piece.nbytes <= 0 or layout.parse_segment_name(piece.segment) is None:
        return _NOWHERE
    return SegmentRange(layout.segment_key(piece.worker, piece.segment), piece.offset, piece.nbytes)


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
    """One array from the bytes of the parts: a view if there is one aligned part, else a copy."""
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
        raise RunCorrupt(f"{what} has shape {list(dims)}, which NumPy rejects:  {error}") from error
    array.flags.writeable = False
    return array
