"""Retrying: repetition of calls after temporary failures, with exponential backoff. Any thread."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tdcore.errors import ActionError

__all__ = ["PassingError", "Retrying"]

_T = TypeVar("_T")


class PassingError(ActionError):
    """A temporary failure. after: seconds to wait, as the service requires."""

    def __init__(self, message: str, *, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """Retry policy for calls.

    Args:
        tries: Maximum number of calls.
        first_pause: Seconds, doubled after each call. A pause is a random part of this time, at least half.
        longest_pause: Maximum seconds of a pause, even if the service requires more.
        wait, draw: For tests.
    """

    tries: int = 4
    first_pause: float = 0.5
    longest_pause: float = 10.0
    wait: Callable[[float], object] = time.sleep
    draw: Callable[[], float] = random.random

    def call(self, function: Callable[[], _T]) -> _T:
        """Result of the function. Raises its exceptions; PassingError only after the last call."""
        pause = self.first_pause
        for _ in range(self.tries - 1):
            try:
                return function()
            except PassingError as error:  # noqa: PERF203 -- it pauses anyway
                jittered = pause * (0.5 + 0.5 * self.draw())
                self.wait(min(max(jittered, error.after), self.longest_pause))
                pause *= 2
        return function()
