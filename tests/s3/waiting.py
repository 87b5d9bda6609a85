"""Waiting for what happens in another process or thread."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], seconds: float = 20.0) -> None:
    """Until `true()`; fails after a long time, which only a fault can take."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
