"""Delivery of a run's stop requests to the script. Independent of the framework.

Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Callable

from tdcore.errors import StopTraining
from tdcore.hooks.clock import Clock
from tdcore.modes import ModeKeys
from tdcore.session import StopRequest

__all__ = ["StopRequests"]


class StopRequests:
    """Delivery of each stop request to the script, once.

    Args:
        clock: Clock of the hook.
        on_stop: Called with a request instead of raising StopTraining.
    """

    def __init__(self, clock: Clock, on_stop: Callable[[StopRequest], None] | None) -> None:
        self._clock = clock
        self._on_stop = on_stop
        self._handled: StopRequest | None = None

    def handle(self, request: StopRequest | None) -> None:
        """Pass a request to the script, unless it is None or was passed before. Raises StopTraining."""
        if request is None or request == self._handled:
            return
        self._handled = request
        if self._on_stop is not None:
            self._on_stop(request)
            return
        now, step = self._clock.now, max(self._clock.last, 0)
        raise StopTraining(
            request.reason,
            step=step,
            mode=ModeKeys(now.mode).name,
            mode_step=now.mode_step if now.step == step else None,
            requested_by=request.by or request.rule,
        )
