"""Pipeline: what is on its way from the flusher to its sink, in order.

To a PipelinedSink several writes are on their way at once; to any other, each is done when start() returns.
One thread: the flusher's.
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
    """Writes to `sink`, whose results are taken in the order in which they were started."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._pipelined = sink if isinstance(sink, PipelinedSink) else None
        self._started: deque[tuple[Future[None], Callable[[], None]]] = deque()

    @property
    def pipelined(self) -> bool:
        """Whether several writes can be on their way."""
        return self._pipelined is not None

    @property
    def busy(self) -> bool:
        """Whether something is on its way."""
        return bool(self._started)

    @property
    def room(self) -> bool:
        """Whether more may be started."""
        return len(self._started) < _LIMIT

    @property
    def trouble(self) -> str:
        """Why the sink keeps things back on the local disk; "" when it does not."""
        return self._pipelined.trouble if self._pipelined is not None else ""

    @property
    def kept_back(self) -> int:
        """Objects that are safe on the local disk but not where they belong."""
        return self._pipelined.waiting if self._pipelined is not None else 0

    def what_is_kept_back(self) -> str:
        """For people: how much, why, and what to do."""
        return self._pipelined.left_behind() if self._pipelined is not None else ""

    def report(self) -> dict[str, Any] | None:
        """See PipelinedSink.report; None for other sinks."""
        return self._pipelined.report() if self._pipelined is not None else None

    def start(
        self, objects: Objects, done: Callable[[], None], each: Callable[[str], None] = lambda key: None
    ) -> None:
        """Write objects in order; `done` is called when all are durable, by this or a later collect().

        each: called with every key that is durable already, where the sink says so. Raises SinkError.
        """
        if self._pipelined is not None:
            self._started.append((self._pipelined.start(objects), done))
            return
        for key, parts in objects:
            self._sink.put(key, parts)
            each(key)
        done()

    def collect(self) -> bool:
        """Take in what has become durable; False when nothing has.

        Raises SinkError when a write failed: then nothing is on its way any more, and all that was not taken
        in must be started again.
        """
        worked = False
        while self._started and self._started[0][0].done():
            future, done = self._started[0]
            error = future.exception()
            if error is not None:
                self._give_up()
                raise error if isinstance(error, SinkError) else SinkError(f"{type(error).__name__}: {error}")
            self._started.popleft()
            done()
            worked = True
        return worked

    def relieve(self) -> None:
        """The memory of what is on its way is needed."""
        if self._pipelined is not None and self._started and not self._pipelined.trouble:
            self._pipelined.relieve()

    def _give_up(self) -> None:
        """One failed, so those behind it fail too; their memory is theirs until they have."""
        wait([future for future, _ in self._started])
        self._started.clear()
        if self._pipelined is not None:
            self._pipelined.start_over()
