"""Protocol buffers on the wire: the fields of one message, in order.

The source is the public description of the encoding of Protocol Buffers. A field with an invalid key, an
incomplete value, or a length beyond its message raises ValueError. Groups are refused. Fields are yielded one
at a time, so a message of many fields needs no memory. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["BYTES", "FIXED64", "VARINT", "Field", "fields"]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_MAX_NUMBER = (1 << 29) - 1


class Field(NamedTuple):
    """One field.

    Attributes:
        number: Number of the field in the message.
        kind: VARINT, FIXED64, BYTES or FIXED32.
        value: The number of a VARINT, else 0.
        begin, end: Place of the other values in the data.
    """

    number: int
    kind: int
    value: int
    begin: int
    end: int


def fields(data: bytes | memoryview, begin: int, end: int) -> Iterator[Field]:
    """The fields of the message in data[begin:end]. Raises ValueError for invalid bytes."""
    at = begin
    while at < end:
        key, at = _varint(data, at, end)
        number, kind = key >> 3, key & 7
        if not 0 < number <= _MAX_NUMBER:
            raise ValueError(f"a field has the number {number}")
        value = 0
        start = at
        if kind == VARINT:
            value, at = _varint(data, at, end)
        elif kind == BYTES:
            length, start = _varint(data, at, end)
            at = start + length
        elif kind in (FIXED64, FIXED32):
            at += 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"field {number} has the unknown wire type {kind}")
        if at > end:
            raise ValueError(f"field {number} ends {at - end} bytes after its message")
        yield Field(number, kind, value, start, at)


def _varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """An unsigned number of at most 64 bits, and the place after it."""
    value = 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        if at >= end:
            raise ValueError("a number is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                raise ValueError("a number has more than 64 bits")
            return value, at
    raise ValueError("a number has more than 10 bytes")
