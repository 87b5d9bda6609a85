"""Hints for unknown names: "; did you mean 'gradients'?". Pure functions; any thread."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]

_LIKE = 0.6  # of difflib: 1 is the same text


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """The closest known name as a hint to append to a message; "" when none is close.

    text: A name, or a regular expression, whose anchors and wildcards do not count.
    """
    plain = text.strip("^$.*+").replace("\\", "").lower()
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(plain, list(by_lower), n=1, cutoff=_LIKE)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
