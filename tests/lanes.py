"""A device's lane (its ring) written by a test, which decides when each record is committed.

The writer uses only the words of the control page (csrc/ring/control_page.hpp) and plain stores. This is
correct for one writer per lane, because x86 keeps the order of stores.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore import _core

UNIT, PAGE, GUARD_BYTES, DIRECT_BYTES = 64, 4096, 64, 256 * 1024
GUARD = 0x1234567890ABCDEF
_RESERVATION, _HEAD = 128, 256  # bytes from the start of the control page
_POSITION_BITS = 40
_ROW: np.dtype[Any] = np.dtype(_core.ROW_DTYPE)  # type: ignore[call-overload]  # a dict, as NumPy takes it
_ENTRY_BYTES = _ROW.fields["step"][1]  # type: ignore[index]
_DTYPES = {name: code for code, name in _core.DTYPES.items()}
_NAMES = {np.dtype(np.float32): "F32", np.dtype(np.uint8): "U8", np.dtype(np.float64): "F64"}


class LaneWriter:
    """Writes to the lane behind `fd`. ring: interns the names."""

    def __init__(self, ring: _core.Ring, fd: int) -> None:
        self._ring = ring
        self._memory = mmap.mmap(fd, 0)
        fixed = struct.unpack_from("<QIIQQQQQQQ", self._memory)
        self._slots, self._data_bytes = int(fixed[2]), int(fixed[4])
        self._slots_at, self._data_at = int(fixed[7]), int(fixed[8])
        self._words: npt.NDArray[np.uint64] = np.frombuffer(self._memory, np.uint64)
        self._ticket = 0
        self._position = 0

    def reserve(self, step: int, tensors: Mapping[str, npt.NDArray[Any]]) -> DeviceRecord | None:
        """Reserve a record with room for these tensors; return None while there is no room."""
        entries_end = UNIT + len(tensors) * _ENTRY_BYTES
        places, size = [], 0
        for value in tensors.values():
            places.append(size)
            size += -(-value.nbytes // UNIT) * UNIT
        align = PAGE if size >= DIRECT_BYTES else UNIT
        size = -(-size // align) * align
        payload = -(-(entries_end + GUARD_BYTES) // align) * align
        at = self._take(payload + size + GUARD_BYTES, align)
        if at is None:
            return None
        start = self._data_at + at
        header = struct.pack(
            "<IIIIqqqQQQ", 0x31424454, len(tensors), _ENTRY_BYTES, 1, step, step, 1, payload, size, GUARD
        )
        self._memory[start : start + len(header)] = header
        for number, ((name, value), place) in enumerate(zip(tensors.items(), places, strict=True)):
            entry = start + UNIT + number * _ENTRY_BYTES
            self._memory[entry : entry + _ENTRY_BYTES] = self._entry(name, value, place)
        for guard in (payload - GUARD_BYTES, payload + size):
            self._words[(start + guard) // 8] = 0
        return DeviceRecord(
            self, self._ticket - 1, start + payload, size, list(zip(places, tensors.values(), strict=True))
        )

    def _take(self, size: int, align: int) -> int | None:
        units, align_units, cap = -(-size // UNIT), align // UNIT, self._data_bytes // UNIT
        head = int(self._words[_HEAD // 8])
        begin = -(-self._position // align_units) * align_units
        if begin % cap + units > cap:
            begin = -(-begin // cap) * cap
        head_ticket, head_position = head >> _POSITION_BITS, head & ((1 << _POSITION_BITS) - 1)
        if self._ticket - head_ticket >= self._slots or begin + units - head_position > cap:
            return None
        slot = (self._slots_at + (self._ticket % self._slots) * 64) // 8
        self._ticket, self._position = self._ticket + 1, begin + units
        self._words[_RESERVATION // 8] = self._ticket << _POSITION_BITS | self._position
        offset = begin % cap * UNIT
        self._words[slot + 1 : slot + 5] = begin, size, 1, offset
        return offset

    def _entry(self, name: str, value: npt.NDArray[Any], place: int) -> bytes:
        row = np.zeros(1, _ROW)
        row["payload_offset"], row["payload_bytes"] = place, value.nbytes
        row["elements"], row["ndim"] = value.size, value.ndim
        row["shape"][0, : value.ndim] = value.shape
        row["name"] = self._ring.intern(name, 1, "Linear")
        row["parts"], row["dtype"] = 1, _DTYPES[_NAMES[value.dtype]]
        return row.tobytes()[:_ENTRY_BYTES]

    def copy(self, at: int, data: bytes) -> None:
        self._memory[at : at + len(data)] = data

    def store(self, at: int, value: int) -> None:
        self._words[at // 8] = value

    def commit_word(self, ticket: int) -> int:
        return self._slots_at + (ticket % self._slots) * 64


class DeviceRecord:
    """A reserved record; the test then does the device's part."""

    def __init__(
        self,
        lane: LaneWriter,
        ticket: int,
        payload: int,
        size: int,
        values: list[tuple[int, npt.NDArray[Any]]],
    ) -> None:
        self._lane, self._ticket, self._payload, self._size, self._values = (
            lane,
            ticket,
            payload,
            size,
            values,
        )

    def write_values(self) -> None:
        """Write the payload and the guards around it."""
        for place, value in self._values:
            self._lane.copy(self._payload + place, value.tobytes())
        for at in (self._payload - GUARD_BYTES, self._payload + self._size):
            self._lane.store(at, GUARD)

    def write_word(self) -> None:
        self._lane.store(self._lane.commit_word(self._ticket), self._ticket + 1)

    def finish(self) -> None:
        self.write_values()
        self.write_word()
