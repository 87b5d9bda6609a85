"""Events: the stream of server-sent events that reports changes of runs to the pages.

Each page has one connection. A page that reads slowly gets the newest state of each run, and no queue grows.
Threads: the coroutines of one event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TypeAlias

__all__ = ["Events", "State"]

State: TypeAlias = "tuple[int, str]"  # version and status of a run

_ALIVE_SECONDS = 15.0  # a comment, so that the connection of a closed page is found
_MAX_LISTENERS = 64


class Events:
    """The connected pages.

    Args:
        watch: Called when the first page has connected.
        rest: Called when the last page has left.
        current: Returns the state of all open runs, so that a page that connects again misses no change.
    """

    def __init__(
        self, watch: Callable[[], None], rest: Callable[[], None], current: Callable[[], dict[str, State]]
    ) -> None:
        self._watch, self._rest, self._current = watch, rest, current
        self._listeners: set[_Listener] = set()
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether no further page may connect."""
        return len(self._listeners) >= _MAX_LISTENERS

    def publish(self, run_id: str, version: int, status: str) -> None:
        """Report that a run has changed."""
        for listener in self._listeners:
            listener.changed[run_id] = (version, status)
            listener.wake.set()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for listener in self._listeners:
            listener.wake.set()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The events for one page."""
        listener = _Listener(self._current())
        if not self._listeners:
            self._watch()
        self._listeners.add(listener)
        try:
            yield b"retry: 1000\n\n"
            while not self._closed:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(listener.wake.wait(), _ALIVE_SECONDS)
                listener.wake.clear()
                changed, listener.changed = listener.changed, {}
                yield b"".join(_event(run_id, *state) for run_id, state in changed.items()) or b": alive\n\n"
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._rest()


class _Listener:
    """One page. changed: the state of each run that has changed since the last event."""

    def __init__(self, changed: dict[str, State]) -> None:
        self.changed = changed
        self.wake = asyncio.Event()
        self.wake.set()


def _event(run_id: str, version: int, status: str) -> bytes:
    data = json.dumps({"run": run_id, "version": version, "status": status})  # without line breaks
    return f"event: run\ndata: {data}\n\n".encode()
