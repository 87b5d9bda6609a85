"""Remarks: what the models of one hook say under common headings of collections.json.

Threads: that of the training.
"""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["Remarks"]

_Found = TypeVar("_Found", list[str], dict[str, Any])


class Remarks:
    """Those of one model. notes: of all models, by heading: a list of names, or names with what is said."""

    def __init__(self, notes: dict[str, Any]) -> None:
        self._notes = notes
        self._said: dict[str, Any] = {}

    def say(self, heading: str, found: _Found, *, even_empty: bool = False) -> None:
        """Puts it in the place of what this model said before.

        An empty answer makes no heading, unless even_empty.
        """
        before = self._said.get(heading)
        if found == before or (not found and before is None and not even_empty):
            return
        said = self._notes.get(heading, type(found)())
        if isinstance(found, dict):
            self._notes[heading] = {
                key: one for key, one in said.items() if key not in (before or {})
            } | found
        else:
            gone = frozenset(before or ())
            self._notes[heading] = [one for one in said if one not in gone] + found
        self._said[heading] = found
