"""Prefetch: download of objects before they are requested, within limits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence

from tdcore.errors import SinkError

__all__ = ["Prefetch"]

_AT_ONCE = 64
_BYTES = 256 << 20
_KEEP_SECONDS = 30.0  # an older answer may be out of date


class Prefetch:
    """Downloads in the announced order, at most 64 at a time, with at most 256 MiB of data in memory.

    get: fetches one object. Threads: only the thread of the event loop.
    """

    def __init__(self, get: Callable[[str], Awaitable[bytes]]) -> None:
        self._get = get
        self._waiting: deque[str] = deque()
        self._started: OrderedDict[str, tuple[float, asyncio.Future[bytes]]] = OrderedDict()

    def announce(self, keys: Sequence[str]) -> None:
        """Announce that take() will be called for these keys soon, in this order."""
        self._waiting.extend(keys)
        self._pump()

    async def take(self, key: str) -> bytes:
        """The object, which was fetched before or is fetched now."""
        found = self._started.pop(key, None)
        if found is None:
            with contextlib.suppress(ValueError):
                self._waiting.remove(key)
            self._pump()
            return await self._get(key)
        since, answer = found
        try:
            data = await answer
        except SinkError:
            data = None  # the object may exist now
        except asyncio.CancelledError:
            answer.cancel()
            raise
        self._pump()
        if data is None or time.monotonic() - since > _KEEP_SECONDS:
            return await self._get(key)
        return data

    def _pump(self) -> None:
        """Start as many gets as the limits allow."""
        while self._waiting and self._has_room():
            key = self._waiting.popleft()
            if key not in self._started:
                answer = asyncio.ensure_future(self._get(key))
                answer.add_done_callback(self._arrived)
                self._started[key] = (time.monotonic(), answer)

    def _arrived(self, answer: asyncio.Future[bytes]) -> None:
        if not answer.cancelled():
            answer.exception()  # read here, so that asyncio does not log an unused error
            self._pump()

    def _has_room(self) -> bool:
        now = time.monotonic()
        while self._started:
            since, answer = next(iter(self._started.values()))
            if not answer.done() or now - since <= _KEEP_SECONDS:
                break
            self._started.popitem(last=False)
        running, held = 0, 0
        for _, answer in self._started.values():
            if not answer.done():
                running += 1
            elif not answer.cancelled() and answer.exception() is None:
                held += len(answer.result())
        return running < _AT_ONCE and held < _BYTES
