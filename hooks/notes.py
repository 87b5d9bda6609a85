"""What collections.json says beside the collections: whatever a reader should know of what was captured."""

from __future__ import annotations

from typing import Any, TypeVar

from tdcore.hooks.plan import NameTable

__all__ = ["Notes"]

T = TypeVar("T")


class Notes(dict[str, Any]):
    """By heading. An entry that is set has the file written when the next step begins.

    Who changes what an entry holds says so: `names.changed = True`.
    """

    def __init__(self, names: NameTable) -> None:
        self._names = names

    def __setitem__(self, heading: str, note: Any) -> None:
        super().__setitem__(heading, note)
        self._names.changed = True

    def setdefault(self, heading: str, note: T) -> T:  # type: ignore[override]  # notes are never None
        """See dict.setdefault."""
        if heading not in self:
            self[heading] = note
        found: T = self[heading]
        return found
