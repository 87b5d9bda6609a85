"""Carrier: brings objects to their bucket, straight or through the spool. The coroutines behind SpooledSink.

Straight: the segments of all jobs at once, and what makes them visible in the order of the jobs. When an
object cannot be brought, or takes too long while its memory is needed, this job and all after it go to the
spool; `deliver` empties it, and when nothing is left the straight way is open again.

Everything runs on the thread of one event loop, but for `trouble`, `spooled` and `waiting`, which anyone may
read.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

from tdcore.sinks.base import Buffer, SinkError
from tdcore.sinks.delivery import Store, deliver
from tdcore.sinks.spool import Spool, SpoolEntry

__all__ = ["Carrier", "Object"]

Object: TypeAlias = "tuple[str, Sequence[Buffer]]"
_End: TypeAlias = "asyncio.Future[SinkError | None]"  # of a job: why it failed, or None

_KEPT_BYTES = 32 * 1024 * 1024
_KEPT_OBJECT_BYTES = 4 * 1024 * 1024
_PAUSE_SECONDS = 1.0  # after the bucket refused an object of the spool; doubled up to _MAX_PAUSE_SECONDS
_MAX_PAUSE_SECONDS = 30.0
_TOO_SLOW = "the bucket takes less than the training gives"


class Carrier:
    """Carries objects to `store`, whose name for people is `where`. See SpooledSink for the rest.

    Made on the loop.
    """

    def __init__(
        self,
        store: Store,
        spool: Spool,
        *,
        where: str,
        spill_after: timedelta,
        relief: timedelta,
        say: Callable[[str], None],
    ) -> None:
        self.trouble = ""  # why the straight way is not taken
        self.spooled = {"objects": 0, "bytes": 0, "damaged": 0}
        self.kept = _Kept()
        self._store = store
        self._spool = spool
        self._where = where
        self._spill_after = spill_after.total_seconds()
        self._relief_seconds = relief.total_seconds()
        self._say = say
        self._told: set[str] = set()  # reasons, each said once
        self._last: _End | None = None  # end of the newest job
        self._pause = _PAUSE_SECONDS
        self._delivery: asyncio.Task[None] | None = None
        self._stopped = False
        self._relief = asyncio.Event()  # set while the straight way is closed
        self._wake = asyncio.Event()  # a job has ended
        for path in spool.found_damaged:
            self.spooled["damaged"] += 1
            say(f"{path} was damaged on the local disk, nobody can say what it was; it is not in the run")
        if len(spool):
            self._close_way("a flusher before this one left objects in the spool")

    async def stop(self) -> None:
        """End the delivery; what the spool holds stays there."""
        self._stopped = True  # a cancel alone may be lost in an error that comes at the same moment
        if self._delivery is not None:
            self._delivery.cancel()
            with suppress(asyncio.CancelledError):
                await self._delivery

    async def start_over(self) -> None:
        """See PipelinedSink.start_over."""
        self._last = None

    async def relieve(self) -> None:
        """See SpooledSink.relieve."""
        if not self.trouble and self._last is not None and not self._last.done():
            self._close_way(_TOO_SLOW, news=True)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete all of them, several at once. Raises the first SinkError when all have ended."""
        for key in keys:
            self.kept.drop(key)
        ends = await asyncio.gather(*(self._store.delete(key) for key in keys), return_exceptions=True)
        for error in ends:
            if error is not None:
                raise error

    async def carry(self, objects: list[Object]) -> None:
        """One job, from start() to durable. Its turn comes when `previous` has ended."""
        previous, mine = self._last, asyncio.get_running_loop().create_future()
        self._last = mine
        error: SinkError | None = None
        try:
            left = objects if self.trouble else await self._send(objects, previous)
            if left:
                await self._put_into_spool(left, previous)
        except SinkError as refused:
            error = refused
            raise
        except Exception as fault:  # of ours: nothing after it may be seen before it
            error = SinkError(f"{type(fault).__name__}: {fault}")
            raise
        finally:
            mine.set_result(error)
            self._wake.set()

    async def _send(self, objects: list[Object], previous: _End | None) -> list[Object]:
        """The straight way. Returns what could not be sent."""
        left = list(objects)
        upload = asyncio.ensure_future(self._upload(left, previous))
        hurry = asyncio.ensure_future(self._relief.wait())
        try:
            await asyncio.wait({upload, hurry}, return_when=asyncio.FIRST_COMPLETED)
            if not upload.done():
                await asyncio.wait({upload}, timeout=self._relief_seconds)
        finally:
            hurry.cancel()
            upload.cancel()
            await asyncio.wait({upload})
        error = None if upload.cancelled() else upload.exception()
        if isinstance(error, SinkError):
            self._close_way(str(error), news=True)
        elif error is not None:
            raise error
        return left

    async def _upload(self, left: list[Object], previous: _End | None) -> None:
        """Send the objects of `left`, and take out those that are there."""
        while left:
            if len(left) == 1 and previous is not None:  # the last one is what makes the others visible
                await asyncio.wait({previous})
                if self.trouble or previous.result() is not None:
                    return
            key, parts = left[0]
            await self._store.put(key, parts, patience=self._spill_after)
            self.kept.add(key, parts)
            del left[0]

    async def _put_into_spool(self, objects: list[Object], previous: _End | None) -> None:
        if previous is not None:
            await asyncio.wait({previous})
            before = previous.result()
            if before is not None:
                raise SinkError(str(before), kind=before.kind, errno=before.errno)
        for key, parts in objects:
            entry = await asyncio.to_thread(self._spool.append, key, parts)
            self.spooled["objects"] += 1
            self.spooled["bytes"] += entry.size

    def _close_way(self, reason: str, news: bool = False) -> None:
        if news and reason not in self._told:
            self._told.add(reason)
            self._say(f"{self._where}: {reason}. Data goes to the spool {self._spool.folder} meanwhile.")
        self.trouble = reason
        self._relief.set()
        if self._delivery is None:
            self._delivery = asyncio.ensure_future(self._deliver())

    async def _deliver(self) -> None:
        """Empty the spool, however long it takes; then the straight way is open again."""
        while not self._stopped:
            self._wake.clear()
            try:
                sent = await deliver(self._spool, self._store, sent=self._was_sent, damaged=self._is_damaged)
            except Exception as error:  # whatever it is: the spool keeps the rest, and it may pass
                self.trouble = str(error) or type(error).__name__
                await asyncio.sleep(random.uniform(0.5, 1.0) * self._pause)
                self._pause = min(2 * self._pause, _MAX_PAUSE_SECONDS)
                continue
            if not sent:
                if (self._last is None or self._last.done()) and not len(self._spool):
                    break  # no job can put anything into the spool any more
                await self._wake.wait()
        self.trouble = ""
        self._delivery = None
        self._relief.clear()

    def _was_sent(self, entry: SpoolEntry) -> None:
        self._pause = _PAUSE_SECONDS

    def _is_damaged(self, entry: SpoolEntry, place: Path) -> None:
        self.spooled["damaged"] += 1
        self._say(
            f"{entry.key} was damaged on the local disk and is not in the run; what is left of it is {place}"
        )


class _Kept:
    """Small objects that were sent a moment ago, so that merging them needs no download."""

    def __init__(self) -> None:
        self._objects: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> bytes | None:
        """The object, while it is kept. Any thread."""
        return self._objects.get(key)

    def add(self, key: str, parts: Sequence[Buffer]) -> None:
        """Keep a copy, unless it is large; the oldest ones go."""
        self.drop(key)
        size = sum(memoryview(part).nbytes for part in parts)
        if size <= _KEPT_OBJECT_BYTES:
            self._objects[key] = b"".join(parts)
            self._bytes += size
        while self._bytes > _KEPT_BYTES:
            self._bytes -= len(self._objects.popitem(last=False)[1])

    def drop(self, key: str) -> None:
        """The object is deleted or replaced."""
        self._bytes -= len(self._objects.pop(key, b""))
