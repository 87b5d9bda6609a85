"""Several memory buffers read as one file, and ranges joined into few requests."""

from __future__ import annotations

import io

import pytest

from tdcore.sinks.s3.parts import PartsReader
from tdcore.sinks.s3.ranges import cut, join

PARTS = [b"0123", b"", b"456789", b"a"]
WHOLE = b"".join(PARTS)


def reader() -> PartsReader:
    return PartsReader([memoryview(part) for part in PARTS])


@pytest.mark.parametrize("size", [1, 3, 5, 100, -1])
def test_reading_on_and_on_gives_everything(size: int) -> None:
    file = reader()
    assert b"".join(iter(lambda: file.read(size), b"")) == WHOLE
    assert file.tell() == len(WHOLE)


def test_one_can_start_anywhere() -> None:
    file = reader()
    for offset in range(len(WHOLE) + 2):
        assert file.seek(offset) == offset
        assert file.read(1) == WHOLE[offset : offset + 1]
    assert file.seek(-2, io.SEEK_END) == len(WHOLE) - 2
    assert file.seek(1, io.SEEK_CUR) == len(WHOLE) - 1


def test_nothing_at_all_is_an_empty_file() -> None:
    assert PartsReader([]).read() == b""


def test_after_release_the_memory_is_free_and_reading_fails() -> None:
    memory = bytearray(b"data")
    view = memoryview(memory)
    file = PartsReader([view])
    assert file.read(2) == b"da"
    file.release()
    view.release()
    memory.clear()  # BufferError while any object still uses the buffer
    with pytest.raises(ValueError, match="after release"):
        file.read(1)


def test_near_ranges_share_a_request_and_far_ones_do_not() -> None:
    ranges = [(5_000_000, 10), (0, 10), (20, 10), (5, 10), (7, 0), (1_000_000, 10)]
    spans = join(ranges)
    assert [(span.start, span.end) for span in spans] == [(0, 1_000_010), (5_000_000, 5_000_010)]
    whole = bytes(range(256)) * 20_000
    answers = [whole[span.start : span.end] for span in spans]
    assert [bytes(piece) for piece in cut(ranges, spans, answers)] == [
        whole[offset : offset + length] for offset, length in ranges
    ]


def test_joining_makes_no_request_longer_than_64_mib() -> None:
    mib = 1 << 20
    spans = join([(at * mib, mib) for at in range(100)])
    assert [(span.start // mib, span.end // mib) for span in spans] == [(0, 64), (64, 100)]
    assert len(join([(0, 200 * mib)])) == 1
