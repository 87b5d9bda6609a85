"""The documents of a run that rules use: its collections, and the notes of its hooks.

Plain functions; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tdcore.errors import RunError, SinkError
from tdcore.format.run_patterns import RunPatterns
from tdcore.rules.window import Members

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["collections_of", "members_of", "not_recorded_of", "notes_of"]


def collections_of(sink: Sink) -> dict[int, dict[str, Mapping[str, Any]]]:
    """Entries of collections by attempt and name.

    Returns an empty mapping if they cannot be read: most rules can select tensors by kind instead.
    """
    from tdcore.trial.documents import read_collections

    try:
        return read_collections(sink)
    except RunError:
        return {}


def notes_of(sink: Sink) -> Mapping[int, Mapping[str, Any]]:
    """The notes of each attempt; {} if they cannot be read."""
    from tdcore.trial.documents import read_notes

    try:
        return read_notes(sink)
    except RunError:
        return {}


def not_recorded_of(sink: Sink, attempt: int | None) -> tuple[str, ...]:
    """Requested tensors that the hook did not record; () if unknown. attempt: None for the newest one."""
    from tdcore.trial.documents import read_notes

    try:
        notes = read_notes(sink)
    except (RunError, SinkError):  # the verdicts do not need it
        return ()
    entries = notes.get(max(notes, default=-1) if attempt is None else attempt, {}).get("not_recorded")
    return tuple(map(str, entries)) if isinstance(entries, list) else ()


def members_of(
    attempts: Mapping[int, Mapping[str, Mapping[str, Any]]], patterns: RunPatterns
) -> dict[str, Members]:
    """Collections of all attempts, merged by name."""
    from tdcore.trial.documents import texts

    found: dict[str, Members] = {}
    for collections in attempts.values():
        for name, entry in collections.items():
            before = found.get(name, Members())
            regexes = dict.fromkeys([*before.include_regex, *texts(entry, "include_regex")])
            names = before.tensor_names | frozenset(texts(entry, "tensor_names"))
            found[name] = Members(tensor_names=names, include_regex=tuple(regexes), patterns=patterns)
    return found
