"""Names that the ring did not accept. Their tensors have no rows; the log and the notes of the run list them.

Threads: those of NameTable.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tdcore.format.layout import LEFT_OUT_NOTE, MAX_NAME_CHARS, TensorKind

__all__ = ["NO_ROOM", "NO_TEXT", "TOO_LONG", "LeftOutNames", "shortened", "unfit"]

_MOST_EXAMPLES = 16
_SHOWN = 96  # characters of a long name

NO_ROOM = "the table of names cannot grow: no memory is left, or RingConfig.names_bytes is reached"


TOO_LONG = f"it is longer than the {MAX_NAME_CHARS:,} characters that readers accept"
NO_TEXT = "it is not valid Unicode text"


def unfit(name: str) -> str:
    """Reason why readers reject the name, as a clause; "" if they accept it."""
    if len(name) > MAX_NAME_CHARS:
        return TOO_LONG
    if name.isascii():
        return ""
    try:
        name.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return NO_TEXT
    return ""


def shortened(name: str) -> str:
    """Return the name for a message; a long name is cut, with its length."""
    shown = name[:_SHOWN].encode(errors="backslashreplace").decode()
    return shown if len(name) <= _SHOWN else f"{shown}... ({len(name):,} characters)"


class LeftOutNames:
    """Number of names that were left out, by kind, and the first few names with the reason."""

    def __init__(self) -> None:
        self._kinds: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, name: str, kind: TensorKind, why: str) -> None:
        """Add a name. why: the reason, as a clause."""
        self._kinds[kind.label] += 1
        if len(self._examples) < _MOST_EXAMPLES:
            self._examples[shortened(name)] = why

    def as_note(self) -> dict[str, Any]:
        """The note for collections.json; empty if no name was left out."""
        if not self._kinds:
            return {}
        return {LEFT_OUT_NOTE: {"kinds": dict(sorted(self._kinds.items())), "examples": dict(self._examples)}}

    def messages(self) -> list[str]:
        """Log messages, one for each reason, with the first name. Later names do not change a message."""
        first = {why: name for name, why in reversed(self._examples.items())}
        return [
            f"tensors are not recorded because their names cannot be stored, the first is {name!r}: {why}. "
            f"The note {LEFT_OUT_NOTE!r} of the run has the number of these tensors"
            for why, name in first.items()
        ]
