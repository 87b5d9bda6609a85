"""Evidence: what in a run points to a cause, and how strongly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["CERTAIN", "LIKELY", "POSSIBLE", "Evidence", "confidence"]

CERTAIN, LIKELY, POSSIBLE = 0.95, 0.75, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observation that points to a cause.

    tensors: names that show it; () for the whole run. step: first step of `mode` that shows it. why: a
    sentence with the numbers in it. strength: 0 to 1; see confidence().
    """

    why: str
    strength: float
    tensors: tuple[str, ...] = ()
    mode: str = "TRAIN"
    step: int = 0
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)


def confidence(strength: float) -> str:
    """A strength in words: "certain", "likely" or "possible"."""
    return "certain" if strength >= CERTAIN else "likely" if strength >= LIKELY else "possible"
