"""Shard and boxes: the elements of a tensor that each shard has, and the elements that no shard has.

A box is a tuple of (low, high) per dimension, high exclusive. The box of a tensor without dimensions is ()
and has one element. Plain values, any thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tdcore.errors import RunCorrupt
from tdcore.format.documents import clipped

__all__ = ["COPY_OF", "Box", "Shard", "UncoveredCells", "box_text", "intersection", "shard_of", "volume"]

Box: TypeAlias = "tuple[tuple[int, int], ...]"
COPY_OF = "copy of "
_MAX_SIZE = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The part of a tensor on one worker: the box of `shape` at `offset` in `global_shape`.

    partial: None, or the name of the reduction over workers, such as "sum", whose result is the tensor.
    "copy of sum" on a worker whose part is a copy of another worker's; the reduction does not include it.
    """

    worker: str
    global_shape: tuple[int, ...]
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    partial: str | None = None

    @property
    def box(self) -> Box:
        """The box of the part in the tensor."""
        return tuple((low, low + size) for low, size in zip(self.offset, self.shape, strict=True))

    @property
    def is_whole(self) -> bool:
        """Whether the part is the whole tensor. Such a part is a copy, unless it is partial."""
        return self.shape == self.global_shape

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part as slices of the tensor."""
        return tuple(slice(low, high) for low, high in self.box)


def shard_of(worker: str, column: Any, shape: Sequence[int], what: str) -> Shard | None:
    """The `shard` of a row; None if the row has none. what: names the tensor and step in messages.

    Raises RunCorrupt for a part that is not inside its tensor.
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
                f"{what}: the part of {worker}, of shape {_short(part)} at {_short(offset)}, is not within "
                f"its tensor of shape {_short(whole)}: the index is damaged"
            )
    partial = column.get("partial")
    return Shard(worker=worker, global_shape=whole, shape=part, offset=offset, partial=partial)


def _short(value: object) -> str:
    return clipped(str(list(value) if isinstance(value, tuple) else value))


def volume(box: Box) -> int:
    """Number of elements."""
    return math.prod(high - low for low, high in box)


def box_text(box: Box) -> str:
    """A box as an index expression: "[0:2, 3:6]"; "[]" for a tensor without dimensions."""
    return "[" + ", ".join(f"{low}:{high}" for low, high in box) + "]"


def intersection(a: Box, b: Box) -> Box | None:
    """The elements in both boxes; None if there are none."""
    both = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return both if all(low < high for low, high in both) else None


class UncoveredCells:
    """The elements of a tensor of `shape` that are in no added box. left: these elements, as boxes."""

    __slots__ = ("left",)

    def __init__(self, shape: Sequence[int]) -> None:
        whole: Box = tuple((0, size) for size in shape)
        self.left: list[Box] = [whole] if volume(whole) else []

    def add(self, box: Box) -> bool:
        """Add a box. Return False if it overlaps a box that was added before."""
        left: list[Box] = []
        fresh = 0
        for each in self.left:
            both = intersection(each, box)
            if both is None:
                left.append(each)
            else:
                fresh += volume(both)
                left += _without(each, both)
        self.left = left
        return fresh == volume(box)


def _without(box: Box, hole: Box) -> list[Box]:
    """The elements of `box` outside `hole`, as boxes: before and after the hole, one dimension at a time."""
    found: list[Box] = []
    for at, ((low, high), (begin, end)) in enumerate(zip(box, hole, strict=True)):
        head, tail = hole[:at], box[at + 1 :]
        found += [(*head, span, *tail) for span in ((low, begin), (end, high)) if span[0] < span[1]]
    return found
