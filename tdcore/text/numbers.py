"""Numbers, sizes and histories as short texts. Pure functions, any thread."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

__all__ = ["BLOCKS", "human_bytes", "line_of_blocks", "number", "number_text"]

BLOCKS = "▁▂▃▄▅▆▇█"


def number(value: float | None, digits: int = 4) -> str:
    """A number in few characters; "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def number_text(value: float | int | str | None) -> str:
    """A value of a table: whole numbers in full, others with one or two decimals; None becomes ""."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 10:
        return f"{value:,.1f}"
    return "<0.01" if 0 < value < 0.01 else f"{value:.2f}"


def human_bytes(count: int | None) -> str:
    """A size such as "1.5 MB"; "-" for None."""
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def line_of_blocks(values: Sequence[float | None], width: int = 24, blocks: str = BLOCKS) -> str:
    """A history as at most `width` blocks, each for the mean of its share of the values.

    A share without a finite value is "x". blocks: characters for small to large values.
    """
    if not values:
        return ""
    width = min(width, len(values))
    if width == len(values):
        means = [value if value is not None and math.isfinite(value) else None for value in values]
    else:
        edges = [at * len(values) // width for at in range(width + 1)]
        means = [_mean(values[first:end]) for first, end in itertools.pairwise(edges)]
    finite = [mean for mean in means if mean is not None]
    if not finite:
        return "x" * width
    low, high = min(finite), max(finite)
    span, top = high / 2 - low / 2, len(blocks) - 1  # halves: no overflow, and no division by a tiny number
    return "".join(
        "x" if mean is None else blocks[round((mean / 2 - low / 2) / span * top) if span else 0]
        for mean in means
    )


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
