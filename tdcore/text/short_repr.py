"""Representations that fit into one line of a notebook.

Settings are shown as the call that creates them. Arguments with default values are left out.
Pure functions, any thread.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

__all__ = ["cut", "how_many", "settings_repr"]

_LONGEST = 160  # maximum number of characters in a line


def settings_repr(value: Any) -> str:
    """For `__repr__` of a dataclass: "SaveConfig(save_interval=5)", the call that creates an equal value."""
    given = []
    for field in fields(value):
        found = getattr(value, field.name)
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        if field.init and field.repr and (default is MISSING or found != default):
            given.append(f"{field.name}={found!r}")
    return f"{type(value).__name__}({', '.join(given)})"


def how_many(count: int, what: str) -> str:
    """A number with its noun: "1 row", "1,449 rows"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def cut(text: str, longest: int = _LONGEST) -> str:
    """The text in one line of at most `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."
