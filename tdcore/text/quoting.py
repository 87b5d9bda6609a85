"""Escapes text from a run for a terminal or a log: names, reasons, notes and paths are untrusted.

Escape sequences move the cursor, change the title of a window or hide earlier text; direction marks display
another name; a line break makes one name look like two lines. All of them are replaced by Python's escapes.
Pure functions, any thread.
"""

from __future__ import annotations

import re

__all__ = ["quoted", "quoted_lines"]

# Controls (C0, DEL, C1), marks that direct or hide text, separators of lines, lone surrogates, tags.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def quoted(text: object, limit: int | None = None) -> str:
    """The text on one line, with escapes for all characters that control a terminal.

    limit: characters; a longer text ends in "..." and its length.
    """
    found = str(text)
    if limit is not None and len(found) > limit:
        found = f"{found[:limit]}... ({len(found):,} characters)"
    return _UNSAFE.sub(_escaped, found)


def quoted_lines(text: object) -> str:
    """As quoted(), for a text of several lines."""
    return "\n".join(map(quoted, str(text).split("\n")))


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
