"""Names that a worker's ring did not accept, from the notes of the hook. Their tensors have no rows.

Threads: any (functions without state).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tdcore.format.layout import LEFT_OUT_NOTE

__all__ = ["LeftOut", "left_out_of", "left_out_text"]

_MOST = 64  # maximum number of kinds and examples that are read from a document
_LONGEST = 200  # maximum number of characters of a text


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Names that were left out. kinds: kind -> number of names. examples: shortened name -> reason."""

    kinds: Mapping[str, int]
    examples: Mapping[str, str]

    @property
    def names(self) -> int:
        """Number of names that were left out."""
        return sum(self.kinds.values())

    def of_kinds(self, kinds: Iterable[str]) -> int:
        """Number of names of these kinds; of all kinds if none is given."""
        wanted = tuple(kinds)
        return sum(self.kinds.get(kind, 0) for kind in wanted) if wanted else self.names


def left_out_of(notes: Mapping[str, Any]) -> LeftOut | None:
    """The left-out names in the notes of one attempt; None if there are none."""
    note = notes.get(LEFT_OUT_NOTE)
    said = note if isinstance(note, dict) else {}
    kinds, examples = said.get("kinds"), said.get("examples")
    counts = {
        str(kind)[:_LONGEST]: count
        for kind, count in (list(kinds.items())[:_MOST] if isinstance(kinds, dict) else ())
        if type(count) is int and 0 < count < 1 << 53
    }
    if not counts:
        return None
    shown = {
        str(name)[:_LONGEST]: str(why)[:_LONGEST]
        for name, why in (list(examples.items())[:_MOST] if isinstance(examples, dict) else ())
    }
    return LeftOut(kinds=counts, examples=shown)


def left_out_text(found: LeftOut, shown: int = 2) -> str:
    """A clause with the number of names, their kinds, some examples and the reasons."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.kinds.items()))
    examples = ", ".join(repr(name) for name in list(found.examples)[:shown])
    reasons = "; ".join(dict.fromkeys(found.examples.values()))
    return f"{found.names:,} names ({kinds}{'; such as ' + examples if examples else ''})" + (
        f": {reasons}" if reasons else ""
    )
