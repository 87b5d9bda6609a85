"""Escaping of text from a run for a terminal or a log: names, reasons, notes and paths are untrusted.

Escape sequences move the cursor, change the title of a window or hide earlier text; direction marks display
another name; a line break makes one name look like two lines. All of these characters are replaced by
Python's escapes. Pure functions, any thread.
"""

from __future__ import annotations

import re

__all__ = ["quoted", "quoted_lines", "without_surrogates"]

# Control characters (C0, DEL, C1), direction marks, invisible characters, line separators, lone surrogates,
# tags.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def quoted(text: object, limit: int | None = None) -> str:
    """The text on one line, with escapes for all characters that control a terminal.

    limit: Maximum number of characters. A longer text is cut, and "..." and its full length are appended.
    """
    found = str(text)
    if limit is not None and len(found) > limit:
        found = f"{found[:limit]}... ({len(found):,} characters)"
    return _UNSAFE.sub(_escaped, found)


def quoted_lines(text: object) -> str:
    """A text of several lines, each escaped as by quoted()."""
    return "\n".join(map(quoted, str(text).split("\n")))


def without_surrogates(text: str) -> str:
    """The text with escapes for lone surrogates, which UTF-8 lacks."""
    return text.encode(errors="backslashreplace").decode()


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
