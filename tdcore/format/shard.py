"""Position of one worker's part of a tensor in the global tensor: the index column `shard`.

The part is a box at `offset` in a tensor of `global_shape`; the row has the shape of the part. A replicated
tensor has zero offsets and the global shape. partial: None, or the reduction over workers ("sum", "avg",
"norm_2", ...) that combines the parts. Pure values; any thread.
"""

from __future__ import annotations

import json
from typing import NamedTuple

__all__ = ["NORM_OF", "ShardPosition"]

NORM_OF = "norm_"  # prefix of the reduction; the power follows


class ShardPosition(NamedTuple):
    """Position in a global tensor. See the docstring of the module."""

    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    partial: str | None = None

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> ShardPosition:
        """The shard of a replicated tensor."""
        return cls(tuple(shape), (0,) * len(shape))

    def as_text(self) -> str:
        """Text form, for the ring's table of names."""
        return json.dumps(self, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> ShardPosition | None:
        """Parse the text form; None for "" and for invalid text."""
        try:
            global_shape, offset, partial = json.loads(text)
            found = cls(tuple(map(int, global_shape)), tuple(map(int, offset)), partial)
        except (TypeError, ValueError):
            return None
        sound = len(found.global_shape) == len(found.offset) and isinstance(partial, (str, type(None)))
        return found if sound else None
