"""Event files of smdebug: TFRecord files of Event messages with one tensor each.

A record has the length of its message (8 bytes), a checksum of the length, the message, and 4 bytes for a
checksum of the message. smdebug 1.0.34 writes the same constant instead of the second checksum, so values are
not protected; any other number must be the checksum of the message. The fields are those of TensorFlow's
Event, Summary and TensorProto. smdebug stores the values of a tensor in `tensor_content`, and texts in
`string_val`.
Events also have a mode and mode step, which are not read: for a scalar, smdebug stores the mode at the time
of writing, and its own reader uses the mode in the index. Every fault raises ValueError; the caller adds the
file. Pure functions, any thread.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from tdcore import _core
from tdcore.compat.wire import BYTES, FIXED64, VARINT, Field, fields
from tdcore.format.layout import MAX_NAME_CHARS

__all__ = ["HEADER_BYTES", "MAX_RECORD_BYTES", "StoredTensor", "check_header", "parse_record"]

HEADER_BYTES = 12
_FRAME_BYTES = HEADER_BYTES + 4
MAX_RECORD_BYTES = (1 << 31) + _FRAME_BYTES  # the limit of Protocol Buffers for one message
_UNCHECKED = 0x062DC0B3  # in place of the checksum of a message
_CRC_MASK = 0xA282EAD8
_MAX_DIMENSIONS = 32
_MAX_STEP = (1 << 63) - 1
_MAX_SECONDS = 2.0**33  # of a time since 1970
# TensorFlow's DataType -> dtype of the index, and bytes of an element.
_DTYPES = {
    1: ("F32", 4), 2: ("F64", 8), 3: ("I32", 4), 4: ("U8", 1), 5: ("I16", 2), 6: ("I8", 1), 8: ("C64", 8),
    9: ("I64", 8), 10: ("BOOL", 1), 14: ("BF16", 2), 17: ("U16", 2), 18: ("C128", 16), 19: ("F16", 2),
    22: ("U32", 4), 23: ("U64", 8),
}  # fmt: skip
_EVENT_TIME, _EVENT_STEP, _EVENT_SUMMARY = 1, 2, 5
_SUMMARY_VALUE = 1
_VALUE_TAG, _VALUE_TENSOR = 1, 8
_TENSOR_DTYPE, _TENSOR_SHAPE, _TENSOR_CONTENT, _TENSOR_TEXT = 1, 2, 4, 8
_TENSOR_NUMBERS = {5, 6, 7, 9, 10, 11, 12, 13, 16, 17}  # the other fields with values
_SHAPE_DIM, _SHAPE_UNKNOWN, _DIM_SIZE = 2, 3, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of an event file.

    Attributes:
        name: Name, the tag of the value.
        step: Global step.
        time_ns: Time of the event, in nanoseconds since 1970.
        dtype: Type in the index; "" for texts and for types without a name there.
        shape: Shape.
        begin, end: Place of the values in the record; both 0 for texts.
    """

    name: str
    step: int
    time_ns: int
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def check_header(header: memoryview, nbytes: int) -> None:
    """Raise ValueError unless a record that begins with these 12 bytes has `nbytes` bytes."""
    if len(header) < HEADER_BYTES:
        raise ValueError("the record is cut short")
    length, checksum = struct.unpack_from("<QI", header)
    if _masked(int(_core.crc32c(bytes(header[:8])))) != checksum:
        raise ValueError("the checksum of the length is wrong")
    if length + _FRAME_BYTES != nbytes:
        raise ValueError(f"its length is {length + _FRAME_BYTES:,}, the index has {nbytes:,}")


def parse_record(record: memoryview) -> StoredTensor:
    """The tensor of one whole record."""
    check_header(record, len(record))
    end = len(record) - 4
    checksum = int.from_bytes(record[end:], "little")
    if checksum != _UNCHECKED and checksum != _masked(int(_core.crc32c(record[HEADER_BYTES:end]))):
        raise ValueError("the checksum of the message is wrong")
    seconds, step, summary = 0.0, 0, None
    for field in fields(record, HEADER_BYTES, end):
        if field.number == _EVENT_TIME and field.kind == FIXED64:
            seconds = struct.unpack_from("<d", record, field.begin)[0]
        elif field.number == _EVENT_STEP and field.kind == VARINT:
            step = field.value
        elif field.number == _EVENT_SUMMARY:
            summary = _only(summary, field, "summary")
    if not 0 <= seconds < _MAX_SECONDS:
        raise ValueError(f"the time {seconds!r} is not a time since 1970")
    if step > _MAX_STEP:
        raise ValueError("the step is negative")
    value = None
    for field in fields(record, *_place(summary, "summary")):
        if field.number == _SUMMARY_VALUE:
            value = _only(value, field, "value")
    return _parse_value(record, _place(value, "value"), step, round(seconds * 1e9))


def _parse_value(record: memoryview, place: tuple[int, int], step: int, time_ns: int) -> StoredTensor:
    tag = tensor = None
    for field in fields(record, *place):
        if field.number == _VALUE_TAG:
            tag = _only(tag, field, "name")
        elif field.number == _VALUE_TENSOR:
            tensor = _only(tensor, field, "tensor")
    name = _text(record, _place(tag, "name"))
    if not name or len(name) > MAX_NAME_CHARS:
        raise ValueError(f"the name has {len(name):,} characters; 1 to {MAX_NAME_CHARS:,} are read")
    dtype, shape, begin, end = _parse_tensor(record, _place(tensor, "tensor"))
    return StoredTensor(name=name, step=step, time_ns=time_ns, dtype=dtype, shape=shape, begin=begin, end=end)


def _parse_tensor(record: memoryview, place: tuple[int, int]) -> tuple[str, tuple[int, ...], int, int]:
    """dtype, shape, begin and end of the values."""
    code, content, is_text = 0, None, False
    shape: tuple[int, ...] = ()
    for field in fields(record, *place):
        if field.number == _TENSOR_DTYPE and field.kind == VARINT:
            code = field.value
        elif field.number == _TENSOR_SHAPE:
            shape = _shape(record, _place(field, "shape"))
        elif field.number == _TENSOR_CONTENT:
            content = _only(content, field, "tensor_content")
        elif field.number == _TENSOR_TEXT:
            is_text = True
        elif field.number in _TENSOR_NUMBERS:
            raise ValueError(
                f"the values are in field {field.number} of the tensor; only tensor_content is read"
            )
    if is_text or code not in _DTYPES:
        return "", shape, 0, 0
    name, itemsize = _DTYPES[code]
    begin, end = (0, 0) if content is None else _place(content, "tensor_content")
    if end - begin != math.prod(shape) * itemsize:
        raise ValueError(
            f"shape {list(shape)} of {name} has {math.prod(shape) * itemsize} bytes, stored are {end - begin}"
        )
    return name, shape, begin, end


def _shape(record: memoryview, place: tuple[int, int]) -> tuple[int, ...]:
    sizes: list[int] = []
    for field in fields(record, *place):
        if field.number == _SHAPE_UNKNOWN:
            raise ValueError("the shape is unknown")
        if field.number == _SHAPE_DIM:
            size = 0
            for inner in fields(record, *_place(field, "dimension")):
                if inner.number == _DIM_SIZE and inner.kind == VARINT:
                    size = inner.value
            sizes.append(size)
        if len(sizes) > _MAX_DIMENSIONS:
            raise ValueError(f"the shape has more than {_MAX_DIMENSIONS} dimensions")
    if any(size >= 1 << 63 for size in sizes):
        raise ValueError("a dimension is negative")
    return tuple(sizes)


def _only(before: Field | None, field: Field, what: str) -> Field:
    if before is not None:
        raise ValueError(f"an event has more than one {what}")
    return field


def _place(field: Field | None, what: str) -> tuple[int, int]:
    if field is None:
        raise ValueError(f"the event has no {what}")
    if field.kind != BYTES:
        raise ValueError(f"the {what} has wire type {field.kind}")
    return field.begin, field.end


def _text(record: memoryview, place: tuple[int, int]) -> str:
    try:
        return bytes(record[slice(*place)]).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"a text is not UTF-8: {error.reason}") from error


def _masked(checksum: int) -> int:
    """A CRC-32C as TFRecord files store it."""
    return (((checksum >> 15) | (checksum << 17)) + _CRC_MASK) & 0xFFFFFFFF
