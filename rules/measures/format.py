"""rounded: numbers for sentences. Pure functions, any thread."""

from __future__ import annotations

__all__ = ["rounded"]


def rounded(value: float) -> str:
    """Format a number with at least three digits: 0.0123, 45.6, 250, 12345; with an exponent from 1e6."""
    if not 100 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:.0f}"
