"""Numbers of tables as text. Pure functions; any thread."""

from __future__ import annotations

__all__ = ["number_text"]


def number_text(value: float | int | str | None) -> str:
    """A value of a table: whole numbers in full, others with one or two decimals; None becomes ""."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 10:
        return f"{value:,.1f}"
    return "<0.01" if 0 < value < 0.01 else f"{value:.2f}"
