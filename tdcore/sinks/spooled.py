"""SpooledSink: the flusher's way into a bucket.

While the bucket keeps up, objects go there straight from the memory they lie in, several at once. When it is
slow, away or refuses, they go to a spool on the local disk, where they are as safe as in a local run; they
leave it in the order in which they came, and when it is empty the straight way is taken again. Only when the
spool refuses as well does the caller hear of it.

Threads: any. The work is done by carrier.Carrier, on the thread of the remote sink's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tdcore.sinks.base import Buffer, SinkError, check_key
from tdcore.sinks.carrier import Carrier, Object
from tdcore.sinks.spool import Spool

if TYPE_CHECKING:
    from tdcore.sinks.s3 import S3Sink

__all__ = ["SpooledSink"]


class SpooledSink:
    """`remote`, behind `spool`. The spool is locked here and let go of by close().

    spill_after: how long the straight way is tried for one object. relief: how long objects that are on
    their way may still take when their memory is needed. say: told once when the spool begins to be used, and
    of objects that are damaged. Raises SpoolInUseError, SinkError.
    """

    def __init__(
        self,
        remote: S3Sink,
        spool: Spool,
        *,
        spill_after: timedelta = timedelta(seconds=5),
        relief: timedelta = timedelta(seconds=1),
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._remote = remote
        self._spool = spool
        spool.lock()

        async def make() -> Carrier:
            return Carrier(
                remote.store, spool, where=remote.where, spill_after=spill_after, relief=relief, say=say
            )

        self._carrier = remote.loop.submit(make()).result()

    # Writing.

    def start(self, objects: Sequence[Object]) -> Future[None]:
        """See PipelinedSink.start."""
        return self._remote.loop.submit(self._carrier.carry(list(objects)))

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See Sink.put. Takes its place behind what was started."""
        try:
            self.start([(key, parts)]).result()
        except SinkError:
            self.start_over()
            raise

    def start_over(self) -> None:
        """See PipelinedSink.start_over."""
        self._remote.loop.submit(self._carrier.start_over()).result()

    def put_new(self, key: str, parts: Sequence[Buffer]) -> bool:
        """See Sink.put_new. Goes straight, past the spool."""
        return self._remote.put_new(key, parts)

    def put_straight(self, key: str, parts: Sequence[Buffer]) -> None:
        """See PipelinedSink.put_straight."""
        self._check_settled()
        self._remote.put(key, parts)

    def relieve(self) -> None:
        """The caller needs its memory back: what is on its way goes to the spool if it takes much longer."""
        self._remote.loop.submit(self._carrier.relieve())

    @property
    def trouble(self) -> str:
        """Why objects go to the spool; "" while they go straight."""
        return self._carrier.trouble

    @property
    def waiting(self) -> int:
        """Objects in the spool."""
        return len(self._spool)

    def left_behind(self) -> str:
        """See PipelinedSink.left_behind."""
        what = f"{len(self._spool)} objects ({self._spool.bytes} bytes) of {self._remote.where}"
        return f"{what} stay in the spool: {self.trouble}. Finish with: tdcore upload {self._spool.folder}"

    def report(self) -> dict[str, Any]:
        """For the run's counters: what was sent, retried and spooled so far."""
        return {
            **self._remote.report(),
            "spooled": dict(self._carrier.spooled),
            "in_spool": len(self._spool),
        }

    # Reading and the rest: only while the bucket holds everything.

    def get(self, key: str) -> bytes:
        """See Sink.get."""
        self._check_settled()
        kept = self._carrier.kept.get(key)
        return kept if kept is not None else self._remote.get(key)

    def start_get(self, key: str) -> Future[bytes]:
        """See PipelinedSink.start_get. Straight from the bucket."""
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
        self._remote.prefetch([key for key in keys if self._carrier.kept.get(key) is None])

    def delete(self, key: str) -> None:
        """See Sink.delete."""
        self.start_delete([key]).result()

    def start_delete(self, keys: Sequence[str]) -> Future[None]:
        """See PipelinedSink.start_delete."""
        self._check_settled()
        for key in keys:
            check_key(key)
        return self._remote.loop.submit(self._carrier.delete(keys))

    def clean(self, prefix: str) -> None:
        """See Sink.clean. A bucket holds no unfinished objects of single puts."""
        self._remote.clean(prefix)

    def close(self) -> None:
        """Stop the delivery; what the spool holds stays there."""
        with suppress(RuntimeError):  # the loop is closed: the second call
            self._remote.loop.submit(self._carrier.stop()).result()
        self._remote.close()
        self._spool.close()

    def _check_settled(self) -> None:
        if self.trouble:
            raise SinkError(f"{self._remote.where} does not hold everything yet: {self.trouble}")
