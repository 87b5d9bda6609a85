"""Hints for unknown names: "; did you mean 'gradients'?". Pure functions; any thread."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["closest", "did_you_mean"]

_LIKE = 0.6  # least similarity of difflib; 1 is the same text


def closest(text: str, known: Iterable[str]) -> str | None:
    """The most similar known name, ignoring case; None if no name is similar."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(text.lower(), list(by_lower), n=1, cutoff=_LIKE)
    return by_lower[close[0]] if close else None


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """The most similar known name as a hint to append to a message; "" if no name is similar.

    text: A name or a regular expression. Anchors and wildcards are ignored.
    """
    name = closest(text.strip("^$.*+").replace("\\", ""), known)
    return "" if name is None else f"; did you mean {name!r}?"
