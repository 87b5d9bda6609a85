"""Byte ranges of an object: neighbouring ranges are joined into one request, and cut out of its response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tdcore.sinks.base import Buffer

__all__ = ["ByteRange", "cut", "join"]

_GAP_BYTES = 1 << 20  # fetching a smaller gap takes less time than another request
_JOINED_BYTES = 64 << 20  # maximum of joined ranges; a single longer range is one request


@dataclass(slots=True)
class ByteRange:
    """One request: bytes from `start` to `end` (exclusive). serves: indices of the ranges that it covers."""

    start: int
    end: int
    serves: list[int] = field(default_factory=list)


def join(ranges: Sequence[tuple[int, int]]) -> list[ByteRange]:
    """Requests that cover all (offset, length) `ranges`. Empty ranges need no request."""
    spans: list[ByteRange] = []
    for at in sorted(range(len(ranges)), key=lambda at: ranges[at]):
        offset, length = ranges[at]
        if length <= 0:
            continue
        end = offset + length
        last = spans[-1] if spans else None
        if last is None or offset > last.end + _GAP_BYTES or end > max(last.end, last.start + _JOINED_BYTES):
            last = ByteRange(offset, end)
            spans.append(last)
        last.end = max(last.end, end)
        last.serves.append(at)
    return spans


def cut(
    ranges: Sequence[tuple[int, int]], spans: Sequence[ByteRange], answers: Sequence[Buffer]
) -> list[Buffer]:
    """The bytes of each of `ranges` from the answers to the requests `spans`, without a copy."""
    pieces: list[Buffer] = [b""] * len(ranges)
    for span, answer in zip(spans, answers, strict=True):
        whole = memoryview(answer)
        for at in span.serves:
            offset, length = ranges[at]
            pieces[at] = whole[offset - span.start : offset - span.start + length]
    return pieces
