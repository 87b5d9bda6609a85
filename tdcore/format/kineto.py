"""Reader of the traces that torch.profiler exports: Chrome traces in JSON.

The reader parses one event at a time, so that a large trace needs little memory. A trace from a run is
untrusted: every fault raises RunCorrupt, and the number of bytes and of events is limited.
Threads: any; no state.
"""

from __future__ import annotations

import codecs
import json
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

from tdcore.errors import RunCorrupt
from tdcore.format.profiles import MAX_TRACE_EVENTS, MAX_TRACE_JSON_BYTES

__all__ = ["ByteStream", "base_time", "trace_events"]

_PIECE_BYTES = 1 << 20
_MAX_EVENT_CHARS = 1 << 20  # also the limit of the part before the events
_EVENTS = '"traceEvents":'
_BASE = '"baseTimeNanoseconds":'
_MAX_NUMBER = (1 << 63) - 1


class ByteStream(Protocol):
    """An open binary file."""

    def read(self, size: int, /) -> bytes:
        """Read at most so many bytes; none at the end."""
        ...


def base_time(stream: ByteStream, where: str) -> int:
    """Time in nanoseconds since 1970 that the timestamps of the trace are relative to; 0 without the key.

    The key is in front of the events. where: the file, for messages. Raises RunCorrupt.
    """
    head = _Text(stream, where).until(_EVENTS)
    _, found, rest = head.partition(_BASE)
    if not found:
        return 0
    try:
        value, _ = json.JSONDecoder().raw_decode(rest.lstrip())
    except (ValueError, RecursionError):
        value = None
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise RunCorrupt(f"{where}: baseTimeNanoseconds is not a time")
    return value


def trace_events(stream: ByteStream, where: str) -> Iterator[dict[str, Any]]:
    """The events of a trace. stream: the JSON text in UTF-8. where: the file, for messages.

    Raises:
        RunCorrupt: The text is not a trace, or it has more bytes or events than readers accept.
    """
    text = _Text(stream, where)
    text.until(_EVENTS)
    text.expect("[")
    for count in range(MAX_TRACE_EVENTS + 1):
        sign = text.next_sign()
        if sign == "]":
            return
        if count:
            text.expect(",")
        if count == MAX_TRACE_EVENTS:
            break
        yield text.event()
    raise RunCorrupt(f"{where} has more than {MAX_TRACE_EVENTS:,} events")


class _Text:
    """A window of the text that moves forward."""

    def __init__(self, stream: ByteStream, where: str) -> None:
        self._stream = stream
        self._where = where
        self._text = ""
        self._at = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._bytes = 0
        self._ended = False
        self._decoder = json.JSONDecoder()

    def until(self, word: str) -> str:
        """Move behind the first occurrence of the word. Return the text in front of it."""
        while word not in self._text:
            if len(self._text) > _MAX_EVENT_CHARS or not self._more():
                raise self._wrong(f"it has no {word}")
        before, _, self._text = self._text.partition(word)
        self._at = 0
        return before

    def next_sign(self) -> str:
        """The next character that is not white space, without moving behind it."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                raise self._wrong("it ends early")

    def expect(self, sign: str) -> None:
        """Move behind the sign, which must be next."""
        if self.next_sign() != sign:
            raise self._wrong(f"expected {sign!r}, got {self._text[self._at : self._at + 20]!r}")
        self._at += 1

    def event(self) -> dict[str, Any]:
        """Parse the next object and move behind it."""
        if self.next_sign() != "{":
            raise self._wrong(f"an event is not an object: {self._text[self._at : self._at + 20]!r}")
        while (found := self._complete_event()) is None:
            if len(self._text) - self._at > _MAX_EVENT_CHARS or not self._more():
                raise self._wrong("an event is not JSON, or is too long")
        return found

    def _complete_event(self) -> dict[str, Any] | None:
        """Parse the next object; None if it is not complete in the window."""
        try:
            value, self._at = self._decoder.raw_decode(self._text, self._at)
        except ValueError:
            return None
        except RecursionError as error:
            raise self._wrong("an event is nested too deeply") from error
        found: dict[str, Any] = value
        return found

    def _more(self) -> bool:
        """Read the next piece. Return False at the end of the text."""
        if self._ended:
            return False
        try:
            data = self._stream.read(_PIECE_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise self._wrong(f"it cannot be read: {error}") from error
        self._bytes += len(data)
        if self._bytes > MAX_TRACE_JSON_BYTES:
            raise self._wrong(f"it has more than {MAX_TRACE_JSON_BYTES:,} bytes")
        self._ended = len(data) == 0
        self._text = self._text[self._at :] + self._decode(data, self._ended)
        self._at = 0
        return not self._ended

    def _wrong(self, why: str) -> RunCorrupt:
        return RunCorrupt(f"{self._where} is not a trace of torch.profiler: {why}")
