"""The lists of tensors in collections.json, which the entries of earlier attempts have as differences.

A restarted training has nearly the same tensors in each attempt. Only the newest attempt has the list of a
collection in full, under `tensor_names`. An earlier attempt can have `names_from` instead: the number of the
other attempt, and the names that are added and removed. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["expand_names", "shorten_names"]

_NAMES, _FROM = "tensor_names", "names_from"


def shorten_names(attempts: Mapping[str, Any], newest: str) -> dict[str, Any]:
    """Replace lists of earlier attempts by differences from those of the newest attempt, if they are short.

    attempts: The value of `attempts` in collections.json, with full lists; it is not changed.
    """
    known = _collections(attempts[newest])
    sets: dict[str, frozenset[str]] = {}

    def shortened(name: str, entry: Any) -> Any:
        names = entry.get(_NAMES) if isinstance(entry, dict) else None
        base = known.get(name, {}).get(_NAMES)
        if not isinstance(names, list) or not isinstance(base, list):
            return entry
        added: list[str] = []
        removed: list[str] = []
        if names != base:
            if names != sorted(set(names)) or base != sorted(set(base)):
                return entry  # the order would be lost
            of_base = sets.setdefault(name, frozenset(base))
            added, removed = sorted(set(names) - of_base), sorted(of_base.difference(names))
        if len(added) + len(removed) >= len(names):
            return entry
        rest = {key: value for key, value in entry.items() if key != _NAMES}
        return {**rest, _FROM: {"attempt": int(newest), "added": added, "removed": removed}}

    return {
        number: document
        if number == newest or not _collections(document)
        else {
            **document,
            "collections": {name: shortened(name, each) for name, each in _collections(document).items()},
        }
        for number, document in attempts.items()
    }


def expand_names(attempts: Mapping[str, Any]) -> dict[str, Any]:
    """The opposite of `shorten_names`. Raises ValueError for a difference from a list that does not exist."""

    def expanded(number: str, name: str, entry: Any) -> Any:
        if not isinstance(entry, dict) or _FROM not in entry:
            return entry
        difference, where = entry[_FROM], f"names_from of collection {name!r} in attempt {number}"
        if not isinstance(difference, dict) or not isinstance(difference.get("attempt"), int):
            raise ValueError(f"{where} has no attempt")
        added, removed = (difference.get(key, []) for key in ("added", "removed"))
        base = _collections(attempts.get(str(difference["attempt"]))).get(name, {})
        names = base.get(_NAMES) if isinstance(base, dict) else None
        if not (isinstance(added, list) and isinstance(removed, list) and isinstance(names, list)):
            raise ValueError(f"{where} does not lead to a list of names")
        if not all(isinstance(text, str) for text in (*added, *removed, *names)):
            raise ValueError(f"{where} leads to a name that is not a text")
        if added or removed:
            names = sorted({*names, *added}.difference(removed))
        return {**{key: value for key, value in entry.items() if key != _FROM}, _NAMES: names}

    return {
        number: {
            **document,
            "collections": {
                name: expanded(number, name, each) for name, each in _collections(document).items()
            },
        }
        if _collections(document)
        else document
        for number, document in attempts.items()
    }


def _collections(document: Any) -> Mapping[str, Any]:
    """The collections of an attempt; empty if there are none."""
    found = document.get("collections") if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}
