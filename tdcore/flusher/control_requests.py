"""Polling of requests in the run's control folder, which are passed to the training.

Two keys are polled: the stop request, until it exists, and the next capture request. The hook checks their
contents (tdcore/format/control.py has the format).

Other programs write to that folder. A request that is a link, a FIFO or a device, or is too large, is never
opened. The flusher prints a message once, marks a capture request as unreadable for the hook, and polls the
next request. An unreadable stop request is ignored until a regular file replaces it. Threads: only the
flusher's thread.
"""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Protocol

from tdcore.errors import UnsafeFile
from tdcore.flusher.messages import print_message
from tdcore.flusher.options import FlusherOptions
from tdcore.format.control import MAX_CAPTURE_REQUESTS, MAX_REQUEST_BYTES
from tdcore.format.layout import capture_key, stop_key
from tdcore.sinks.base import PipelinedSink, Sink, SinkError

__all__ = ["ControlRequests"]

_MAX_ERROR_CHARS = 400  # maximum length of an error that is passed to the hook
_BARE_STOP = '{"reason": "stop requested"}'


class TrainerChannel(Protocol):
    """The methods of the ring's consumer that ControlRequests calls."""

    @property
    def requests_posted(self) -> int:
        """Number of requests passed on so far by this flusher and earlier flushers."""
        ...

    def request_stop(self, text: str) -> None:
        """Pass the stop request to the training."""
        ...

    def try_post_request(self, text: str) -> bool:
        """Pass on another request. Return False while the training has not read the last request."""
        ...


class ControlRequests:
    """The requests for `attempt`. Each is passed on once. After a failure the sink is polled again."""

    def __init__(self, sink: Sink, attempt: int, options: FlusherOptions, trainer: TrainerChannel) -> None:
        self._trainer = trainer
        self._attempt = attempt
        self._stop: PolledObject | None = PolledObject(sink, stop_key(attempt), options)
        self._number = trainer.requests_posted
        self._capture = PolledObject(sink, self._key, options)
        self._waiting = ""  # a request that the training cannot take yet

    def poll(self, now: float) -> None:
        """Poll both keys when a poll is due. Never blocks on a remote sink."""
        if self._stop is not None:
            data = self._stop.poll(now)
            if isinstance(data, bytes):
                self._trainer.request_stop(_passable(data) or _BARE_STOP)
                self._stop = None
        if self._number < MAX_CAPTURE_REQUESTS:
            self._poll_capture(now)

    @property
    def _key(self) -> str:
        return capture_key(self._attempt, self._number)

    def _poll_capture(self, now: float) -> None:
        if not self._waiting:
            data = self._capture.poll(now)
            if data is None:
                return
            # A note replaces a request that cannot be passed on, so that the hook logs that the request was
            # ignored.
            if isinstance(data, UnsafeFile):
                self._waiting = json.dumps({"unreadable": str(data)[:_MAX_ERROR_CHARS]})
            else:
                self._waiting = _passable(data) or json.dumps({"too_large": len(data)})
        if self._trainer.try_post_request(self._waiting):
            self._waiting = ""
            self._number += 1
            self._capture.next(self._key)


class PolledObject:
    """One object that is polled until it exists, at the interval of the options."""

    def __init__(self, sink: Sink, key: str, options: FlusherOptions) -> None:
        self._sink = sink
        self._key = key
        self._pipelined = sink if isinstance(sink, PipelinedSink) else None
        pause = options.stop_poll if self._pipelined is None else options.remote_stop_poll
        self._pause = pause.total_seconds()
        self._next = 0.0
        self._pending: Future[bytes] | None = None  # a request to the sink
        self._warning = ""  # the last printed warning, which is not repeated

    def next(self, key: str) -> None:
        """Poll the object `key` from this call on."""
        self._key = key

    def poll(self, now: float) -> bytes | UnsafeFile | None:
        """The contents of the object; the error if it must not be read; None if it does not exist."""
        if now < self._next:
            return None
        data: bytes | UnsafeFile | None = None
        try:
            data = self._read()
        except UnsafeFile as error:
            data = error
            self._warn(str(error))
        except SinkError:
            pass
        if self._pending is None:
            self._next = now + self._pause
        return data

    def _warn(self, message: str) -> None:
        if message != self._warning:
            self._warning = message
            print_message(f"a request is ignored: {message}")

    def _read(self) -> bytes | None:
        if self._pipelined is None:
            return self._sink.get(self._key)
        if self._pending is None:
            self._pending = self._pipelined.start_get(self._key)
        if not self._pending.done():
            return None
        answer, self._pending = self._pending, None
        return bytes(answer.result())


def _passable(data: bytes) -> str:
    """The document's text; "" if it is too large."""
    text = data.decode("utf-8", "replace")
    return text if len(text.encode()) <= MAX_REQUEST_BYTES else ""
