"""Hints for unknown names: "; did you mean 'gradients'?". Pure functions; any thread."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["closest", "did_you_mean"]

_LIKE = 0.6  # of difflib: 1 is the same text


def closest(text: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar, in any case; None when none is close."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(text.lower(), list(by_lower), n=1, cutoff=_LIKE)
    return by_lower[close[0]] if close else None


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """The closest known name as a hint to append to a message; "" when none is close.

    text: A name, or a regular expression, whose anchors and wildcards do not count.
    """
    name = closest(text.strip("^$.*+").replace("\\", ""), known)
    return "" if name is None else f"; did you mean {name!r}?"
