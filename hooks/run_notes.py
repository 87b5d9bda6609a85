"""Notes about a run, stored in collections.json next to the collections.

Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tdcore.hooks.plan import NameTable

__all__ = ["ModelNotes", "RunNotes", "note_once"]

T = TypeVar("T")
_Found = TypeVar("_Found", list[str], dict[str, Any])


class RunNotes(dict[str, Any]):
    """Notes of one run by heading. After a change, collections.json is written when the next step begins.

    Code that changes the value of a note in place must set `names.changed = True`.
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


class ModelNotes:
    """Notes of one model under headings that all models of a hook share.

    Args:
        notes: The run's notes; under each heading a list of names, or a mapping of names to notes.
    """

    def __init__(self, notes: dict[str, Any]) -> None:
        self._notes = notes
        self._own: dict[str, Any] = {}

    def set(self, heading: str, found: _Found, *, even_empty: bool = False) -> None:
        """Replace the entries of this model under the heading.

        An empty value creates a heading only if `even_empty` is set.
        """
        before = self._own.get(heading)
        if found == before or (not found and before is None and not even_empty):
            return
        shared = self._notes.get(heading, type(found)())
        if isinstance(found, dict):
            others = {key: note for key, note in shared.items() if key not in (before or {})}
            self._notes[heading] = others | found
        else:
            gone = frozenset(before or ())
            self._notes[heading] = [name for name in shared if name not in gone] + found
        self._own[heading] = found


def note_once(notes: dict[str, Any], warn: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that logs a message once and stores it under "not_captured" of the run's notes."""

    def note(message: str) -> None:
        noted = notes.get("not_captured", [])
        if message not in noted:
            notes["not_captured"] = [*noted, message]
        warn(message)

    return note
