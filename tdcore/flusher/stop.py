"""Looks for a request to stop the training in the run's control folder. One thread: the flusher's."""

from __future__ import annotations

from concurrent.futures import Future

from tdcore.flusher.options import FlusherOptions
from tdcore.layout import stop_key
from tdcore.sinks.base import PipelinedSink, Sink, SinkError

__all__ = ["StopRequests"]

_MAX_BYTES = 8192  # what the control page holds
_BARE = '{"reason": "stop requested"}'


class StopRequests:
    """The request for `attempt`, which is passed on once. A sink that refuses is asked again later."""

    def __init__(self, sink: Sink, attempt: int, options: FlusherOptions) -> None:
        self._sink = sink
        self._key = stop_key(attempt)
        self._pipelined = sink if isinstance(sink, PipelinedSink) else None
        pause = options.stop_poll if self._pipelined is None else options.remote_stop_poll
        self._pause = pause.total_seconds()
        self._next = 0.0
        self._asked: Future[bytes] | None = None  # an answer that is on its way
        self._seen = False

    def poll(self, now: float) -> str | None:
        """The request's text, when one has come. Never waits for a sink that is far away."""
        if self._seen or now < self._next:
            return None
        try:
            data = self._read()
        except SinkError:
            data = None
        if self._asked is None:
            self._next = now + self._pause
        if data is None:
            return None
        self._seen = True
        text = data.decode("utf-8", "replace")
        return text if 0 < len(text.encode()) <= _MAX_BYTES else _BARE

    def _read(self) -> bytes | None:
        if self._pipelined is None:
            return self._sink.get(self._key)
        if self._asked is None:
            self._asked = self._pipelined.start_get(self._key)
        if not self._asked.done():
            return None
        answer, self._asked = self._asked, None
        return bytes(answer.result())
