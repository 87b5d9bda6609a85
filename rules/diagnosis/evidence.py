"""Evidence: an observation in a run that supports a cause, with its strength."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["CERTAIN", "LIKELY", "POSSIBLE", "Evidence", "confidence"]

CERTAIN, LIKELY, POSSIBLE = 0.95, 0.75, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observation that supports a cause.

    Attributes:
        tensors: Names of the tensors; () for the whole run.
        mode, step: First step of the mode with the observation.
        why: A sentence with the numbers.
        strength: From 0 to 1; see confidence().
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
