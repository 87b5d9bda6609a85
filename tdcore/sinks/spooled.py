"""SpooledSink: sink of a flusher that writes to a bucket, with a spool on the local disk as fallback.

While the bucket is fast enough, objects are uploaded directly from memory, several at a time. When the bucket
is slow, unreachable or rejects requests, objects are stored in a spool on the local disk, which is as durable
as a local run. Objects leave the spool in the order in which they were stored. When the spool is empty,
uploads from memory start again. The caller gets an error only when the spool fails too.

Threads: any. The work runs in uploader.Uploader, on the thread of the remote sink's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tdcore.sinks.base import Buffer, SinkError, check_key
from tdcore.sinks.spool import Spool
from tdcore.sinks.uploader import Object, Uploader

if TYPE_CHECKING:
    from tdcore.sinks.s3 import S3Sink

__all__ = ["SpooledSink"]


class SpooledSink:
    """The sink `remote` with the spool `spool`. The constructor locks the spool; close() releases it.

    Args:
        remote: Sink of the bucket.
        spool: The spool for objects that could not be uploaded.
        spill_after: Maximum time of an upload from memory before the object is stored in the spool.
        relief: Maximum time for which uploads may still run after relieve().
        log: Called once for each reason to use the spool, and for each damaged object.

    Raises:
        SpoolInUseError: Another process uses the spool.
        SinkError: The spool cannot be read or written.
    """

    def __init__(
        self,
        remote: S3Sink,
        spool: Spool,
        *,
        spill_after: timedelta = timedelta(seconds=5),
        relief: timedelta = timedelta(seconds=1),
        log: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._remote = remote
        self._spool = spool
        spool.lock()

        async def make() -> Uploader:
            return Uploader(
                remote.store, spool, where=remote.where, spill_after=spill_after, relief=relief, log=log
            )

        self._uploader = remote.loop.submit(make()).result()

    # Writing

    def start(self, objects: Sequence[Object]) -> Future[None]:
        """See PipelinedSink.start."""
        return self._remote.loop.submit(self._uploader.upload(list(objects)))

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See Sink.put. The object is stored after all objects that were started before."""
        try:
            self.start([(key, parts)]).result()
        except SinkError:
            self.start_over()
            raise

    def start_over(self) -> None:
        """See PipelinedSink.start_over."""
        self._remote.loop.submit(self._uploader.start_over()).result()

    def put_new(self, key: str, parts: Sequence[Buffer]) -> bool:
        """See Sink.put_new. The spool is not used."""
        return self._remote.put_new(key, parts)

    def put_straight(self, key: str, parts: Sequence[Buffer]) -> None:
        """See PipelinedSink.put_straight."""
        self._check_settled()
        self._remote.put(key, parts)

    def relieve(self) -> None:
        """Free the caller's memory: store uploads that are still running after `relief` in the spool."""
        self._remote.loop.submit(self._uploader.relieve())

    @property
    def trouble(self) -> str:
        """Why objects are stored in the spool; "" while they are uploaded from memory."""
        return self._uploader.trouble

    @property
    def waiting(self) -> int:
        """Number of objects in the spool."""
        return len(self._spool)

    def left_behind(self) -> str:
        """See PipelinedSink.left_behind."""
        what = f"{len(self._spool)} objects ({self._spool.bytes} bytes) of {self._remote.where}"
        return f"{what} stay in the spool: {self.trouble}. Finish with: tdcore upload {self._spool.folder}"

    def upload_totals(self) -> tuple[int, int, int]:
        """See PipelinedSink.upload_totals."""
        uploader = self._uploader
        return uploader.durable_bytes, uploader.accepted_bytes, self._remote.store.upload_ns()

    def report(self) -> dict[str, Any]:
        """Counts of uploads, retries and spooled objects so far, for the run's counters."""
        return {
            **self._remote.report(),
            "spooled": dict(self._uploader.spooled),
            "in_spool": len(self._spool),
        }

    # Reading and deleting: only while the bucket has all objects.

    def get(self, key: str) -> bytes:
        """See Sink.get."""
        self._check_settled()
        recent = self._uploader.recent.get(key)
        return recent if recent is not None else self._remote.get(key)

    def start_get(self, key: str) -> Future[bytes]:
        """See PipelinedSink.start_get. Only the bucket is read."""
        return self._remote.start_get(key)

    def tail(self, key: str, length: int) -> bytes:
        """See Sink.tail."""
        self._check_settled()
        return self._remote.tail(key, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """See Sink.get_ranges."""
        self._check_settled()
        return self._remote.get_ranges(key, ranges)

    def list(self, prefix: str, after: str = "") -> list[str]:
        """See Sink.list."""
        self._check_settled()
        return self._remote.list(prefix, after)

    def prefetch(self, keys: Sequence[str]) -> None:
        """See ReadAheadSink.prefetch."""
        self._remote.prefetch([key for key in keys if self._uploader.recent.get(key) is None])

    def delete(self, key: str) -> None:
        """See Sink.delete."""
        self.start_delete([key]).result()

    def start_delete(self, keys: Sequence[str]) -> Future[None]:
        """See PipelinedSink.start_delete."""
        self._check_settled()
        for key in keys:
            check_key(key)
        return self._remote.loop.submit(self._uploader.delete(keys))

    def clean(self, prefix: str) -> None:
        """See Sink.clean. A put to a bucket is one request and leaves no unfinished object."""
        self._remote.clean(prefix)

    def close(self) -> None:
        """Stop all uploads. Objects in the spool stay there."""
        with suppress(RuntimeError):  # the loop is closed after the first call
            self._remote.loop.submit(self._uploader.stop()).result()
        self._remote.close()
        self._spool.close()

    def _check_settled(self) -> None:
        if self.trouble:
            raise SinkError(f"{self._remote.where} does not have all objects yet: {self.trouble}")
