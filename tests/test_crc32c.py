"""Checksums in Python: published vectors, buffers, ranges, errors."""

from __future__ import annotations

import numpy as np
import pytest

from tdcore import _core


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_published_vectors_match(data: bytes, value: int) -> None:
    assert _core.crc32c(data) == value


def test_seed_continues_a_checksum() -> None:
    data = np.random.default_rng(0).bytes(700_000)
    assert _core.crc32c(data[123_456:], _core.crc32c(data[:123_456])) == _core.crc32c(data)


def test_any_contiguous_buffer_is_read_as_bytes() -> None:
    values = np.arange(100, dtype=np.float32).reshape(4, 25)
    assert _core.crc32c(values) == _core.crc32c(values.data) == _core.crc32c(values.tobytes())


def test_ranges_are_checked_one_by_one() -> None:
    data = np.random.default_rng(1).bytes(100_000)
    offsets = np.array([0, 5, 100_000, 64], np.uint64)
    sizes = np.array([100_000, 70, 0, 33_333], np.uint64)
    values = np.frombuffer(_core.crc32c_many(data, offsets, sizes), np.uint32)
    pairs = zip(offsets.tolist(), sizes.tolist(), strict=True)
    assert values.tolist() == [_core.crc32c(data[o : o + n]) for o, n in pairs]


@pytest.mark.parametrize(("offset", "size"), [(90, 11), (101, 0), (2**64 - 1, 2), (0, 2**64 - 1)])
def test_a_range_that_leaves_the_data_is_named(offset: int, size: int) -> None:
    offsets = np.array([0, offset], np.uint64)
    sizes = np.array([100, size], np.uint64)
    with pytest.raises(ValueError, match=r"range 1 .* is outside of the data of 100 bytes"):
        _core.crc32c_many(bytes(100), offsets, sizes)


def test_offsets_and_sizes_must_fit_together() -> None:
    with pytest.raises(ValueError, match="must have the same length"):
        _core.crc32c_many(b"abc", bytes(16), bytes(8))
    with pytest.raises(ValueError, match="multiple of 8"):
        _core.crc32c_many(b"abc", bytes(9), bytes(8))


def test_a_buffer_with_gaps_is_refused() -> None:
    with pytest.raises(BufferError):
        _core.crc32c(memoryview(bytes(100))[::2])
