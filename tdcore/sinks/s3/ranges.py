"""Ranges of an object, joined into few requests and cut out of the answers again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tdcore.sinks.base import Buffer

__all__ = ["Span", "cut", "join"]

_GAP_BYTES = 1 << 20  # fetching a smaller gap takes less time than another request
_SPAN_BYTES = 64 << 20  # one request asks for no more by joining; one long range stays one request


@dataclass(slots=True)
class Span:
    """One request: bytes from `start` to `end` (not included), for the asked ranges numbered `serves`."""

    start: int
    end: int
    serves: list[int] = field(default_factory=list)


def join(ranges: Sequence[tuple[int, int]]) -> list[Span]:
    """Requests that cover all (offset, length) `ranges`; empty ranges need none."""
    spans: list[Span] = []
    for at in sorted(range(len(ranges)), key=lambda at: ranges[at]):
        offset, length = ranges[at]
        if length <= 0:
            continue
        end = offset + length
        last = spans[-1] if spans else None
        if last is None or offset > last.end + _GAP_BYTES or end > max(last.end, last.start + _SPAN_BYTES):
            last = Span(offset, end)
            spans.append(last)
        last.end = max(last.end, end)
        last.serves.append(at)
    return spans


def cut(ranges: Sequence[tuple[int, int]], spans: Sequence[Span], answers: Sequence[Buffer]) -> list[Buffer]:
    """The bytes of each of `ranges` out of the answers to `spans`, without a copy."""
    pieces: list[Buffer] = [b""] * len(ranges)
    for span, answer in zip(spans, answers, strict=True):
        whole = memoryview(answer)
        for at in span.serves:
            offset, length = ranges[at]
            pieces[at] = whole[offset - span.start : offset - span.start + length]
    return pieces
