"""Boxes: which cells of a tensor its parts hold, which nobody holds, and which several do.

A box is a tuple of (low, high) per dimension, high exclusive; a tensor without dimensions is the box of none,
which has one cell. Pure values, any thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tdcore.errors import RunCorrupt
from tdcore.format.documents import clipped

__all__ = ["COPY_OF", "Box", "Cover", "Shard", "box_text", "common", "shard_of", "volume"]

Box: TypeAlias = "tuple[tuple[int, int], ...]"
COPY_OF = "copy of "
_MAX_SIZE = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The part of a tensor that a worker has: the box of `shape` at `offset` in `global_shape`.

    partial: None, or the name of the reduction ("sum") over workers that makes the tensor out of such parts;
    "copy of sum" on a worker whose part is a copy of another worker's, which does not count again.
    """

    worker: str
    global_shape: tuple[int, ...]
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    partial: str | None = None

    @property
    def box(self) -> Box:
        """Where the part is in the tensor."""
        return tuple((low, low + size) for low, size in zip(self.offset, self.shape, strict=True))

    @property
    def is_whole(self) -> bool:
        """Whether the part is the whole tensor: a copy, unless it is partial."""
        return self.shape == self.global_shape

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part's place, to index the whole with."""
        return tuple(slice(low, high) for low, high in self.box)


def shard_of(worker: str, column: Any, shape: Sequence[int], what: str) -> Shard | None:
    """The `shard` of a row; None where it has none. what: names the tensor and step in messages.

    Raises RunCorrupt for a part that does not lie in its tensor.
    """
    if column is None:
        return None
    lists = [column.get("global_shape"), column.get("offset"), shape]
    if not all(isinstance(each, (list, tuple)) for each in lists) or len({len(each) for each in lists}) != 1:
        raise RunCorrupt(f"{what}: {worker} has a part of shape {_short(shape)} at {_short(column)}")
    whole, offset, part = (tuple(each) for each in lists)
    for size, low, extent in zip(whole, offset, part, strict=True):
        numbers = all(isinstance(each, int) and 0 <= each <= _MAX_SIZE for each in (size, low, extent))
        if not numbers or low + extent > size:
            raise RunCorrupt(
                f"{what}: the part of {worker}, of shape {_short(part)} at {_short(offset)}, does not lie in "
                f"its tensor of shape {_short(whole)}: the index is damaged"
            )
    partial = column.get("partial")
    return Shard(worker=worker, global_shape=whole, shape=part, offset=offset, partial=partial)


def _short(value: object) -> str:
    return clipped(str(list(value) if isinstance(value, tuple) else value))


def volume(box: Box) -> int:
    """Number of cells."""
    return math.prod(high - low for low, high in box)


def box_text(box: Box) -> str:
    """A box as one would index it: "[0:2, 3:6]"; "[]" for the one cell of a tensor without dimensions."""
    return "[" + ", ".join(f"{low}:{high}" for low, high in box) + "]"


def common(a: Box, b: Box) -> Box | None:
    """The cells of both; None where they share none."""
    both = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return both if all(low < high for low, high in both) else None


class Cover:
    """What is left of a tensor of `shape` when the boxes that were added are taken out of it."""

    __slots__ = ("left",)

    def __init__(self, shape: Sequence[int]) -> None:
        whole: Box = tuple((0, size) for size in shape)
        self.left: list[Box] = [whole] if volume(whole) else []

    def add(self, box: Box) -> bool:
        """Takes a box out. False when some of its cells were taken before."""
        left: list[Box] = []
        fresh = 0
        for each in self.left:
            both = common(each, box)
            if both is None:
                left.append(each)
            else:
                fresh += volume(both)
                left += _without(each, both)
        self.left = left
        return fresh == volume(box)


def _without(box: Box, hole: Box) -> list[Box]:
    """A box without a hole in it, as boxes: what lies before and after the hole, one dimension at a time."""
    found: list[Box] = []
    for at, ((low, high), (begin, end)) in enumerate(zip(box, hole, strict=True)):
        head, tail = hole[:at], box[at + 1 :]
        found += [(*head, span, *tail) for span in ((low, begin), (end, high)) if span[0] < span[1]]
    return found
