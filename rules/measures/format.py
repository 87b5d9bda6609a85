"""rounded: numbers for sentences. Pure functions, any thread."""

from __future__ import annotations

__all__ = ["rounded"]


def rounded(value: float) -> str:
    """A number in three digits or more: 0.0123, 45.6, 250, 12345; from a million on with an exponent."""
    if not 100 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:.0f}"
