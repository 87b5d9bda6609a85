"""Checksums of S3 objects, computed independently of tdcore; CRCs with NumPy, many rows of bytes at once."""

from __future__ import annotations

import base64
import functools
import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.uint64]

_CRC32C = (32, 0x82F63B78)  # Castagnoli, reflected
_CRC64NVME = (64, 0x9A6C9329AC4BC9B5)  # NVM Express, reflected
_ROW_BYTES = 64
_BY_ROWS_FROM = 4096


@functools.cache
def _table(polynomial: int) -> Table:
    """Return the remainders of the 256 bytes."""
    rows = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        rows = (rows >> np.uint64(1)) ^ np.where(rows & np.uint64(1), np.uint64(polynomial), np.uint64(0))
    return rows


def _step(table: Table, state: npt.NDArray[np.uint64], byte: Any) -> npt.NDArray[np.uint64]:
    """Return the states after one more byte each."""
    after: npt.NDArray[np.uint64] = table[(state ^ byte) & np.uint64(0xFF)] ^ (state >> np.uint64(8))
    return after


@functools.cache
def _zeros(polynomial: int, width: int, length: int) -> Table:
    """Return how `length` zero bytes change a state: a table for each byte of the state, [width / 8, 256].

    length: _ROW_BYTES times a power of two. The change is linear, so the table of the first half is applied
    twice.
    """
    values = np.arange(256, dtype=np.uint64)
    state = np.stack([values << np.uint64(8 * place) for place in range(width // 8)])
    if length == _ROW_BYTES:
        for _ in range(length):
            state = _step(_table(polynomial), state, np.uint64(0))
        return state
    half = _zeros(polynomial, width, length // 2)
    return _advanced(half, _advanced(half, state))


def _advanced(zeros: Table, state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the states after the zeros that the table describes."""
    result = np.zeros_like(state)
    for place, row in enumerate(zeros):
        result ^= row[(state >> np.uint64(8 * place)) & np.uint64(0xFF)]
    return result


def crc(data: bytes | bytearray | memoryview, kind: tuple[int, int]) -> int:
    """Return a reflected CRC, with all bits set before and inverted after.

    kind: width in bits, polynomial.
    """
    width, polynomial = kind
    ones = (1 << width) - 1
    table = _table(polynomial)
    if len(data) < _BY_ROWS_FROM:
        steps, state = table.tolist(), ones
        for byte in bytes(data):
            state = steps[(state ^ byte) & 0xFF] ^ (state >> 8)
        return int(state) ^ ones
    # Zeros before the data do not change a state of zeros, and a state of ones equals inverted first bytes.
    # So the data is padded to a power of two of rows, which are all reduced in parallel and then joined.
    rows = 1 << (-(-len(data) // _ROW_BYTES) - 1).bit_length()
    padded = np.zeros(rows * _ROW_BYTES, dtype=np.uint8)
    begin = len(padded) - len(data)
    padded[begin:] = np.frombuffer(data, dtype=np.uint8)
    padded[begin : begin + width // 8] ^= np.uint8(0xFF)
    columns = np.ascontiguousarray(padded.reshape(rows, _ROW_BYTES).T)
    states = np.zeros(rows, dtype=np.uint64)
    for column in columns:
        states = _step(table, states, column)
    length = _ROW_BYTES
    while len(states) > 1:
        states = _advanced(_zeros(polynomial, width, length), states[0::2]) ^ states[1::2]
        length *= 2
    return int(states[0]) ^ ones


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli)."""
    return crc(data, _CRC32C)


def crc64nvme(data: bytes) -> int:
    """Return the CRC-64/NVME."""
    return crc(data, _CRC64NVME)


def _digest(name: str, data: bytes) -> bytes:
    return hashlib.new(name, data, usedforsecurity=False).digest()


ALGORITHMS: dict[str, Callable[[bytes], bytes]] = {
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "crc32c": lambda data: crc32c(data).to_bytes(4, "big"),
    "crc64nvme": lambda data: crc64nvme(data).to_bytes(8, "big"),
    "sha1": functools.partial(_digest, "sha1"),
    "sha256": functools.partial(_digest, "sha256"),
}


def encoded(algorithm: str, data: bytes) -> str:
    """Return the checksum in base64, as x-amz-checksum-* headers contain it."""
    return base64.b64encode(ALGORITHMS[algorithm](data)).decode()
