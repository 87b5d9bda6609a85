"""Natural order of names: numbers count by value, "layer2" before "layer10". Pure functions, any thread."""

from __future__ import annotations

import re

__all__ = ["NaturalKey", "natural_key"]

NaturalKey = tuple[tuple[str, int, str], ...]

_PIECES = re.compile(r"([^0-9]*)([0-9]*)", re.ASCII)
_MOST_DIGITS = 18  # longer numbers are compared as texts


def natural_key(text: str) -> NaturalKey:
    """Sort key of a text: numbers are compared by value, and texts without numbers as usual."""
    return tuple(
        (letters + ("" if len(digits) <= _MOST_DIGITS else digits), _number(digits), digits)
        for letters, digits in _PIECES.findall(text)
        if letters or digits
    )


def _number(digits: str) -> int:
    return int(digits) if 0 < len(digits) <= _MOST_DIGITS else -1
