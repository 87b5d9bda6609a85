"""Pipeline: the flusher's writes in progress, in order.

A PipelinedSink runs several writes at the same time. With any other sink, a write is complete when start()
returns. Threads: only the flusher's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeAlias

from tdcore.sinks.base import Buffer, PipelinedSink, Sink, SinkError

__all__ = ["Objects", "Pipeline"]

Objects: TypeAlias = "Sequence[tuple[str, Sequence[Buffer]]]"

_LIMIT = 16


class Pipeline:
    """Writes to `sink`, whose results are collected in the order in which the writes were started."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._pipelined = sink if isinstance(sink, PipelinedSink) else None
        self._started: deque[tuple[Future[None], Callable[[], None]]] = deque()

    @property
    def pipelined(self) -> bool:
        """Whether several writes can run at the same time."""
        return self._pipelined is not None

    @property
    def busy(self) -> bool:
        """Whether a write is in progress."""
        return bool(self._started)

    @property
    def room(self) -> bool:
        """Whether another write may be started."""
        return len(self._started) < _LIMIT

    @property
    def trouble(self) -> str:
        """The reason why the sink keeps objects on the local disk; "" if the sink keeps none."""
        return self._pipelined.trouble if self._pipelined is not None else ""

    @property
    def kept_back(self) -> int:
        """Number of objects that are durable on the local disk but not in the run yet."""
        return self._pipelined.waiting if self._pipelined is not None else 0

    def kept_back_message(self) -> str:
        """A sentence for the user: how many objects are kept back, why, and what to do."""
        return self._pipelined.left_behind() if self._pipelined is not None else ""

    def upload_totals(self) -> tuple[int, int, int]:
        """See PipelinedSink.upload_totals; zeros for other sinks."""
        return self._pipelined.upload_totals() if self._pipelined is not None else (0, 0, 0)

    def report(self) -> dict[str, Any] | None:
        """See PipelinedSink.report; None for other sinks."""
        return self._pipelined.report() if self._pipelined is not None else None

    def start(
        self, objects: Objects, done: Callable[[], None], each: Callable[[str], None] = lambda key: None
    ) -> None:
        """Start to write objects in order.

        Args:
            objects: (key, parts) of each object.
            done: Called when all objects are durable, by this call or a later collect().
            each: Called with every key that is durable, if the sink reports it.

        Raises:
            SinkError: The write failed.
        """
        if self._pipelined is not None:
            self._started.append((self._pipelined.start(objects), done))
            return
        for key, parts in objects:
            self._sink.put(key, parts)
            each(key)
        done()

    def collect(self) -> bool:
        """Call `done` of each write that has become durable. Return False if there was none.

        Raises SinkError if a write failed. In this case no write is in progress, and all writes whose `done`
        was not called must be started again.
        """
        worked = False
        while self._started and self._started[0][0].done():
            future, done = self._started[0]
            error = future.exception()
            if error is not None:
                self._wait_for_failures()
                raise error if isinstance(error, SinkError) else SinkError(f"{type(error).__name__}: {error}")
            self._started.popleft()
            done()
            worked = True
        return worked

    def relieve(self) -> None:
        """Free the memory of the writes in progress: the sink should keep them on the local disk."""
        if self._pipelined is not None and self._started and not self._pipelined.trouble:
            self._pipelined.relieve()

    def _wait_for_failures(self) -> None:
        """Wait for all later writes, which fail too after a failed write and use their memory until then."""
        wait([future for future, _ in self._started])
        self._started.clear()
        if self._pipelined is not None:
            self._pipelined.start_over()
