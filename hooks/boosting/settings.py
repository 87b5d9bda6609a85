"""Hyper-parameters of a model: numbers are recorded as tensors, other values as notes.

Pure functions; any thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["as_number", "flattened", "split_settings"]


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    """Return (numbers, texts) by name. True and False become the numbers 1 and 0; None is left out."""
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    for name, value in settings.items():
        number = as_number(value)
        if number is not None:
            numbers[str(name)] = number
        elif value is not None:
            texts[str(name)] = str(value)
    return numbers, texts


def as_number(value: Any) -> float | None:
    """Return the value as a float; None if it is not a number. The text of a number counts as a number."""
    if isinstance(value, str) and not value[:1].strip("+-.0123456789") and value:
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, (bool, int, float)) or (hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
        return number if not math.isnan(number) or isinstance(value, float) else None
    return None


def flattened(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a nested mapping by their own names; the first leaf if names are equal."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            for inner, leaf in flattened(value).items():
                found.setdefault(inner, leaf)
        elif not isinstance(value, (list, tuple)):
            found.setdefault(name, value)
    return found
