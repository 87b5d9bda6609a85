"""Retrying: calls again what may pass, with pauses that grow and differ by chance. Any thread."""

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
    """A failure that may be over soon. after: seconds that the other side asks to wait."""

    def __init__(self, message: str, *, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """tries: calls in all. first_pause: seconds, doubled each time; a pause is half to all of it, by chance.

    longest_pause: seconds, also of what the other side asks for. wait, draw: for tests.
    """

    tries: int = 4
    first_pause: float = 0.5
    longest_pause: float = 10.0
    wait: Callable[[float], object] = time.sleep
    draw: Callable[[], float] = random.random

    def call(self, function: Callable[[], _T]) -> _T:
        """What the function returns. Raises what it raises, PassingError only after the last try."""
        pause = self.first_pause
        for _ in range(self.tries - 1):
            try:
                return function()
            except PassingError as error:  # noqa: PERF203 -- it pauses anyway
                jittered = pause * (0.5 + 0.5 * self.draw())
                self.wait(min(max(jittered, error.after), self.longest_pause))
                pause *= 2
        return function()
