"""Warner: a logger that logs each warning of a hook once. Threads: any."""

from __future__ import annotations

import logging

__all__ = ["Warner"]

_log = logging.getLogger("tdcore")


class Warner:
    """Logger of warnings, each once. It does not refer to the hook, so a deleted hook is freed at once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(self, message: str) -> None:
        """Log the message as a warning unless it was logged before."""
        if message not in self._logged:
            self._logged.add(message)
            _log.warning("tdcore: %s", message)
