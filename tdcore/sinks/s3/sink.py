"""S3Sink: a run in a bucket, for callers of any thread."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

from tdcore.errors import SinkError
from tdcore.sinks.base import Buffer, check_key, check_prefix
from tdcore.sinks.s3.event_loop import LoopClosed, LoopThread
from tdcore.sinks.s3.options import parse_s3_url
from tdcore.sinks.s3.prefetch import Prefetch
from tdcore.sinks.s3.store import S3Store

__all__ = ["S3Sink"]

T = TypeVar("T")


class S3Sink:
    """The run at `url` ("s3://bucket/prefix?options"). A Sink and a ReadAheadSink. Any thread.

    No request is sent before the first call, and a bucket is never created. In a forked child every call
    raises SinkError; open the sink again in the child.

    Args:
        url: The place, with options.
        patience: Time for which temporary failures are retried before a SinkError.

    Attributes:
        store, loop: The asynchronous part, and the thread that runs it.
        where: The place, for messages.

    Raises:
        ConfigError: The URL is invalid.
        UnsupportedFeature: No S3 client is installed.
    """

    def __init__(self, url: str, *, patience: timedelta = timedelta(seconds=60)) -> None:
        self.place = parse_s3_url(url)
        self.where = self.place.where
        self.store = S3Store(self.place, patience=patience)
        self.loop = LoopThread()
        self._prefetch = Prefetch(self.store.get)

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See Sink.put."""
        check_key(key)
        self._run(self.store.put(key, parts))

    def put_new(self, key: str, parts: Sequence[Buffer]) -> bool:
        """See Sink.put_new, and S3Store.put_new for stores without conditional puts."""
        check_key(key)
        return self._run(self.store.put_new(key, parts))

    def get(self, key: str) -> bytes:
        """See Sink.get. An object that prefetch() has fetched is returned without a request."""
        check_key(key)
        return self._run(self._prefetch.take(key))

    def start_get(self, key: str) -> Future[bytes]:
        """Like get(), without waiting for the result. Raises SinkError if the sink is closed."""
        check_key(key)
        try:
            return self.loop.submit(self.store.get(key))
        except LoopClosed as error:
            raise self._closed(error) from error

    def prefetch(self, keys: Sequence[str]) -> None:
        """See ReadAheadSink.prefetch."""
        try:
            self.loop.submit(self._announce([check_key(key) for key in keys]))
        except (LoopClosed, ValueError):  # closed, or not a key: get() raises the error
            return

    def tail(self, key: str, length: int) -> bytes:
        """See Sink.tail."""
        check_key(key)
        return self._run(self.store.tail(key, length))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """See Sink.get_ranges. Neighbouring ranges are joined into one request."""
        check_key(key)
        return self._run(self.store.get_ranges(key, ranges))

    def list(self, prefix: str, after: str = "") -> list[str]:
        """See Sink.list."""
        check_prefix(prefix)
        return self._run(self.store.list(prefix, after))

    def delete(self, key: str) -> None:
        """See Sink.delete."""
        check_key(key)
        self._run(self.store.delete(key))

    def clean(self, prefix: str) -> None:
        """See Sink.clean. A put to a bucket is one request and leaves no unfinished object."""
        check_prefix(prefix)

    def report(self) -> dict[str, Any]:
        """Counts of requests so far, see S3Store.report."""
        return self.store.report()

    def close(self) -> None:
        """Cancel running requests and close the connections. Later calls have no effect."""
        self.loop.close(self.store.close())

    async def _announce(self, keys: Sequence[str]) -> None:
        self._prefetch.announce(keys)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self.loop.run(work)
        except LoopClosed as error:
            raise self._closed(error) from error

    def _closed(self, error: LoopClosed) -> SinkError:
        return SinkError(f"the connection to {self.where!r} {error}", kind="transient")
