"""Waits for events in another process or thread, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["PATIENCE_SECONDS", "wait_until"]

# No test waits this long unless something is broken, even on a busy machine. Less than the time limit of a
# test in pyproject.toml.
PATIENCE_SECONDS = 240.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.05


def wait_until(true: Callable[[], object], what: str = "it was true") -> None:
    """Wait until `true()`; fail with `what` after PATIENCE_SECONDS. Polls less often the longer it takes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = _FIRST_PAUSE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:.0f} s in vain until {what}"
        time.sleep(pause)
        pause = min(1.2 * pause, _LONGEST_PAUSE_SECONDS)
