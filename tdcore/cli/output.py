"""What the commands share: tables or JSON, numbers for people, lines of blocks."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "human_bytes", "number", "print_json", "sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 120  # where the output is no terminal


def console() -> Console:
    """The console on stdout."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDTH
    return Console(width=width, highlight=False, soft_wrap=False)


def print_json(value: object) -> None:
    """One JSON document; NaN and infinities as text, which JSON lacks."""
    print(json.dumps(_plain(value), indent=1, allow_nan=False))


def number(value: float | None, digits: int = 4) -> str:
    """A number in few characters; "-" for none."""
    if value is None:
        return "-"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def human_bytes(count: int | None) -> str:
    """1.5 MB; "-" for none."""
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def sparkline(values: Sequence[float | None], width: int = 24) -> str:
    """Values as a line of blocks, at most `width` long:

    each block is the mean of its share, "x" where none is finite.
    """
    if not values:
        return ""
    width = min(width, len(values))
    shares = [values[at * len(values) // width : (at + 1) * len(values) // width] for at in range(width)]
    means = [_mean(share) for share in shares]
    finite = [mean for mean in means if mean is not None]
    if not finite:
        return "x" * width
    low, high = min(finite), max(finite)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join("x" if mean is None else _BLOCKS[round((mean - low) * scale)] for mean in means)


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
