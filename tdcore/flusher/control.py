"""Looks for requests in the run's control folder and passes them on to the training. Flusher's thread only.

Two keys are asked for: the request to stop, until there is one, and the next request to capture more. What
they hold is the hook's to judge (tdcore/format/control.py says what it may be).

Others write that folder. A request that is a link, a FIFO or a device, or is too large, is never opened: the
flusher says so once, passes a request to capture more on as one that cannot be read, and goes on to the next.
Such a request to stop is none; a file that takes its place is.
"""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Protocol

from tdcore.errors import UnsafeFile
from tdcore.flusher.health import say
from tdcore.flusher.options import FlusherOptions
from tdcore.format.control import MAX_CAPTURE_REQUESTS, MAX_REQUEST_BYTES
from tdcore.format.layout import capture_key, stop_key
from tdcore.sinks.base import PipelinedSink, Sink, SinkError

__all__ = ["ControlRequests"]

_MAX_WHY = 400  # characters of a message that is passed on
_BARE_STOP = '{"reason": "stop requested"}'


class Trainer(Protocol):
    """What is needed of the ring's consumer."""

    @property
    def requests_posted(self) -> int:
        """Requests passed on so far, by flushers before this one too."""
        ...

    def request_stop(self, text: str) -> None:
        """Passes the request to stop on."""
        ...

    def try_post_request(self, text: str) -> bool:
        """Passes another request on. False while the one before has not been taken."""
        ...


class ControlRequests:
    """The requests for `attempt`: each is passed on once. A sink that refuses is asked again later."""

    def __init__(self, sink: Sink, attempt: int, options: FlusherOptions, trainer: Trainer) -> None:
        self._trainer = trainer
        self._attempt = attempt
        self._stop: Awaited | None = Awaited(sink, stop_key(attempt), options)
        self._number = trainer.requests_posted
        self._capture = Awaited(sink, self._key, options)
        self._waiting = ""  # for the training to take the request before it

    def poll(self, now: float) -> None:
        """Looks when it is time to. Never waits for a sink that is far away."""
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
            # One that cannot be passed on is passed on as a note, so that the hook says that it was ignored.
            if isinstance(data, UnsafeFile):
                self._waiting = json.dumps({"unreadable": str(data)[:_MAX_WHY]})
            else:
                self._waiting = _passable(data) or json.dumps({"too_large": len(data)})
        if self._trainer.try_post_request(self._waiting):
            self._waiting = ""
            self._number += 1
            self._capture.next(self._key)


class Awaited:
    """One object that is asked for until it is there, at the pace that the options allow."""

    def __init__(self, sink: Sink, key: str, options: FlusherOptions) -> None:
        self._sink = sink
        self._key = key
        self._pipelined = sink if isinstance(sink, PipelinedSink) else None
        pause = options.stop_poll if self._pipelined is None else options.remote_stop_poll
        self._pause = pause.total_seconds()
        self._next = 0.0
        self._asked: Future[bytes] | None = None  # an answer that is on its way
        self._told = ""  # the last warning, which is not repeated

    def next(self, key: str) -> None:
        """Another object is awaited from now on."""
        self._key = key

    def poll(self, now: float) -> bytes | UnsafeFile | None:
        """What the object holds, when it has come; an error when it is none that may be read."""
        if now < self._next:
            return None
        data: bytes | UnsafeFile | None = None
        try:
            data = self._read()
        except UnsafeFile as error:
            data = error
            self._tell(str(error))
        except SinkError:
            pass
        if self._asked is None:
            self._next = now + self._pause
        return data

    def _tell(self, message: str) -> None:
        if message != self._told:
            self._told = message
            say(f"a request is ignored: {message}")

    def _read(self) -> bytes | None:
        if self._pipelined is None:
            return self._sink.get(self._key)
        if self._asked is None:
            self._asked = self._pipelined.start_get(self._key)
        if not self._asked.done():
            return None
        answer, self._asked = self._asked, None
        return bytes(answer.result())


def _passable(data: bytes) -> str:
    """The document's text; "" when there is none that fits."""
    text = data.decode("utf-8", "replace")
    return text if len(text.encode()) <= MAX_REQUEST_BYTES else ""
