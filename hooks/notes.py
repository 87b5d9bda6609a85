"""What collections.json says beside the collections: whatever a reader should know of what was captured; and
messages that are logged once.
"""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from tdcore.hooks.plan import NameTable

__all__ = ["Notes", "Warner"]

_log = logging.getLogger("tdcore")

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


class Warner:
    """Says each message once. Holds no reference to the hook, so that a dropped hook is freed at once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, message: str) -> None:
        """Logs a warning."""
        if message not in self._said:
            self._said.add(message)
            _log.warning("tdcore: %s", message)
