"""Uploader: coroutines of SpooledSink that upload objects from memory, or store them in the spool.

A job is a list of objects; its last object makes the others visible to readers. Segments of all jobs are
uploaded concurrently, and the last objects in the order of the jobs. When an upload fails, or takes too long
while its memory is needed, this job and all later jobs are stored in the spool. `drain_spool` uploads them;
when the spool is empty, jobs are uploaded from memory again.

All coroutines run on the thread of one event loop. Any thread may read `trouble`, `spooled` and the totals of
bytes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

from tdcore.sinks.base import Buffer, SinkError
from tdcore.sinks.spool import Spool, SpoolEntry
from tdcore.sinks.spool_drain import ObjectStore, drain_spool

__all__ = ["Object", "Uploader"]

Object: TypeAlias = "tuple[str, Sequence[Buffer]]"
_JobEnd: TypeAlias = "asyncio.Future[SinkError | None]"  # the error of a job that failed, or None

_RECENT_BYTES = 32 * 1024 * 1024
_RECENT_OBJECT_BYTES = 4 * 1024 * 1024
_PAUSE_SECONDS = 1.0  # after the bucket rejected an object of the spool; doubled up to _MAX_PAUSE_SECONDS
_MAX_PAUSE_SECONDS = 30.0
_SILENT_SECONDS = 30.0  # an error is logged if the bucket has accepted nothing for this time
_TOO_SLOW = "the bucket accepts data more slowly than the training writes it"


class Uploader:
    """Uploads of objects to `store`. Created on the thread of the event loop.

    where: the place of the store, for messages. SpooledSink describes the other arguments.
    """

    def __init__(
        self,
        store: ObjectStore,
        spool: Spool,
        *,
        where: str,
        spill_after: timedelta,
        relief: timedelta,
        log: Callable[[str], None],
    ) -> None:
        self.trouble = ""  # why jobs are stored in the spool
        self.spooled = {"objects": 0, "bytes": 0, "damaged": 0}
        self.durable_bytes = 0  # of objects that the bucket or the spool has stored
        self.accepted_bytes = 0  # of objects that the bucket has stored; each object counts once
        self.recent = _RecentObjects()
        self._store = store
        self._spool = spool
        self._where = where
        self._spill_after = spill_after.total_seconds()
        self._relief_seconds = relief.total_seconds()
        self._log = log
        self._accepted_at = time.monotonic()
        self._logged: set[str] = set()  # reasons that were logged
        self._last: _JobEnd | None = None  # end of the newest job
        self._pause = _PAUSE_SECONDS
        self._drain: asyncio.Task[None] | None = None
        self._stopped = False
        self._relief = asyncio.Event()  # set while jobs are stored in the spool
        self._wake = asyncio.Event()  # a job has ended
        for path in spool.found_damaged:
            self.spooled["damaged"] += 1
            log(f"{path} was damaged on the local disk, and its key is unknown; it is not in the run")
        if len(spool):
            self._use_spool("an earlier flusher left objects in the spool")

    async def stop(self) -> None:
        """Stop draining the spool. Objects in the spool stay there."""
        self._stopped = True  # a cancellation alone may be lost if an error occurs at the same moment
        if self._drain is not None:
            self._drain.cancel()
            with suppress(asyncio.CancelledError):
                await self._drain

    async def start_over(self) -> None:
        """See PipelinedSink.start_over."""
        self._last = None

    async def relieve(self) -> None:
        """See SpooledSink.relieve."""
        if not self.trouble and self._last is not None and not self._last.done():
            self._use_spool(_TOO_SLOW)  # not logged: the trainer warns if this continues (hooks/sink_load.py)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete all `keys`, several at a time. Raises the first SinkError after all requests have ended."""
        for key in keys:
            self.recent.drop(key)
        ends = await asyncio.gather(*(self._store.delete(key) for key in keys), return_exceptions=True)
        for error in ends:
            if error is not None:
                raise error

    async def upload(self, objects: list[Object]) -> None:
        """Run one job until its objects are durable. Its last object waits for the previous job."""
        previous, mine = self._last, asyncio.get_running_loop().create_future()
        self._last = mine
        error: SinkError | None = None
        try:
            left = objects if self.trouble else await self._upload(objects, previous)
            if left:
                await self._put_into_spool(left, previous)
        except SinkError as sink_error:
            error = sink_error
            raise
        except Exception as bug:  # in tdcore: no later object may become visible before this job
            error = SinkError(f"{type(bug).__name__}: {bug}")
            raise
        finally:
            mine.set_result(error)
            self._wake.set()

    async def _upload(self, objects: list[Object], previous: _JobEnd | None) -> list[Object]:
        """Upload from memory, and return the objects that could not be uploaded."""
        left = list(objects)
        upload = asyncio.ensure_future(self._upload_in_order(left, previous))
        relief = asyncio.ensure_future(self._relief.wait())
        try:
            await asyncio.wait({upload, relief}, return_when=asyncio.FIRST_COMPLETED)
            if not upload.done():
                await asyncio.wait({upload}, timeout=self._relief_seconds)
        finally:
            relief.cancel()
            upload.cancel()
            await asyncio.wait({upload})
        error = None if upload.cancelled() else upload.exception()
        if isinstance(error, SinkError):
            # A bucket that limits the rate of requests is slow, which the trainer reports with numbers.
            self._use_spool(str(error), log=getattr(error.__cause__, "code", "") != "SlowDown")
        elif error is not None:
            raise error
        return left

    async def _upload_in_order(self, left: list[Object], previous: _JobEnd | None) -> None:
        """Upload the objects of `left`, and remove each from the list when the store has it."""
        while left:
            if len(left) == 1 and previous is not None:  # the last object makes the others visible
                await asyncio.wait({previous})
                if self.trouble or previous.result() is not None:
                    return
            key, parts = left[0]
            await self._store.put(key, parts, patience=self._spill_after)
            self.recent.add(key, parts)
            del left[0]
            size = sum(memoryview(part).nbytes for part in parts)
            self.durable_bytes += size
            self._count_accepted(size)

    async def _put_into_spool(self, objects: list[Object], previous: _JobEnd | None) -> None:
        if previous is not None:
            await asyncio.wait({previous})
            before = previous.result()
            if before is not None:
                raise SinkError(str(before), kind=before.kind, errno=before.errno)
        for key, parts in objects:
            entry = await asyncio.to_thread(self._spool.append, key, parts)
            self.spooled["objects"] += 1
            self.spooled["bytes"] += entry.size
            self.durable_bytes += entry.size

    def _use_spool(self, reason: str, log: bool = False) -> None:
        if log:
            self._log_once(reason)
        self.trouble = reason
        self._relief.set()
        if self._drain is None:
            self._drain = asyncio.ensure_future(self._drain_until_empty())

    def _log_once(self, reason: str) -> None:
        if reason not in self._logged:
            self._logged.add(reason)
            self._log(
                f"{self._where}: {reason}. Until the bucket accepts data, it is stored in the spool "
                f"{self._spool.folder}."
            )

    def _count_accepted(self, size: int) -> None:
        self.accepted_bytes += size
        self._accepted_at = time.monotonic()

    async def _drain_until_empty(self) -> None:
        """Upload all objects of the spool. Then jobs are uploaded from memory again."""
        while not self._stopped:
            self._wake.clear()
            try:
                sent = await drain_spool(
                    self._spool, self._store, sent=self._was_sent, damaged=self._was_damaged
                )
            except Exception as error:  # any: the next try may succeed
                self.trouble = str(error) or type(error).__name__
                if time.monotonic() - self._accepted_at > _SILENT_SECONDS:
                    self._log_once(self.trouble)
                await asyncio.sleep(random.uniform(0.5, 1.0) * self._pause)
                self._pause = min(2 * self._pause, _MAX_PAUSE_SECONDS)
                continue
            if not sent:
                if (self._last is None or self._last.done()) and not len(self._spool):
                    break  # no job is left that could add to the spool
                await self._wake.wait()
        self.trouble = ""
        self._drain = None
        self._relief.clear()

    def _was_sent(self, entry: SpoolEntry) -> None:
        self._pause = _PAUSE_SECONDS
        self._count_accepted(entry.size)

    def _was_damaged(self, entry: SpoolEntry, place: Path) -> None:
        self.spooled["damaged"] += 1
        self._log(f"{entry.key} was damaged on the local disk and is not in the run; the rest is now {place}")


class _RecentObjects:
    """Small objects that were uploaded recently, so that merging them needs no download."""

    def __init__(self) -> None:
        self._objects: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> bytes | None:
        """The object; None if it is not in memory. Any thread."""
        return self._objects.get(key)

    def add(self, key: str, parts: Sequence[Buffer]) -> None:
        """Keep a copy of the object unless it is large, and remove the oldest objects above the limit."""
        self.drop(key)
        size = sum(memoryview(part).nbytes for part in parts)
        if size <= _RECENT_OBJECT_BYTES:
            self._objects[key] = b"".join(parts)
            self._bytes += size
        while self._bytes > _RECENT_BYTES:
            self._bytes -= len(self._objects.popitem(last=False)[1])

    def drop(self, key: str) -> None:
        """Remove the object, because it was deleted or replaced in the bucket."""
        self._bytes -= len(self._objects.pop(key, b""))
