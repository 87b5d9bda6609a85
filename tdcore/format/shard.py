"""Where the part of a tensor that one worker holds lies in the whole: the index column `shard`.

The part is a box at `offset` in a tensor of `global_shape`; its own shape is the row's. A replicated tensor
has offset zeros and the whole's shape. partial: None, or the reduction ("sum", "avg", "norm_2", ...) over
workers of which the part is one summand. Pure values; any thread.
"""

from __future__ import annotations

import json
from typing import NamedTuple

__all__ = ["NORM_OF", "Shard"]

NORM_OF = "norm_"  # of a reduction: the power follows


class Shard(NamedTuple):
    """A place in a larger tensor. See the module's text."""

    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    partial: str | None = None

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Shard:
        """Of a tensor that every worker has in full."""
        return cls(tuple(shape), (0,) * len(shape))

    def as_text(self) -> str:
        """As the ring's table of names holds it."""
        return json.dumps(self, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Shard | None:
        """What as_text() made; None for "" and for what makes no sense."""
        try:
            global_shape, offset, partial = json.loads(text)
            found = cls(tuple(map(int, global_shape)), tuple(map(int, offset)), partial)
        except (TypeError, ValueError):
            return None
        sound = len(found.global_shape) == len(found.offset) and isinstance(partial, (str, type(None)))
        return found if sound else None
