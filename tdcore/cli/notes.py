"""What a hook noted about a run, as lines: what was not captured and why, what is frozen, what failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tdcore.format.layout import LEFT_OUT_NOTE
from tdcore.text.quoting import quoted

__all__ = ["note_lines"]

_MAX_CHARS = 400  # of an entry
_SHOWN = 4  # of many entries under one heading
_ELSEWHERE = {"exception", LEFT_OUT_NOTE}  # stand with the attempt and with what is missing
_SENTENCES = {"not_captured", "not_recorded", "capture_requests"}  # each a line


def note_lines(notes: Mapping[str, Any]) -> Iterator[str]:
    """A line or more for each heading; long lists are cut, Trial.notes() has all."""
    for heading, said in sorted(notes.items()):
        what = quoted(heading.replace("_", " "), _MAX_CHARS)
        entries = _entries(said)
        if heading in _ELSEWHERE or not entries:
            continue
        if heading in _SENTENCES:
            yield from (f"{what}: {entry}" for entry in entries)
        else:
            more = [f"... ({len(entries):,} in all)"] if len(entries) > _SHOWN else []
            yield f"{what}: {', '.join([*entries[:_SHOWN], *more])}"


def _entries(said: Any) -> list[str]:
    if isinstance(said, Mapping):
        return [quoted(_entry(name, why), _MAX_CHARS) for name, why in said.items()]
    return [quoted(one, _MAX_CHARS) for one in (said if isinstance(said, list) else [said])]


def _entry(name: str, why: Any) -> str:
    text = ", ".join(map(str, why)) if isinstance(why, list) else why
    return f"{name} ({text})" if isinstance(text, (str, int)) else name
