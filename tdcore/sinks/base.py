"""Sink: where the files of one run live. The only way in which tdcore writes a run.

Implementations: `local.LocalSink` (a folder), `s3.S3Sink` (a bucket), `spooled.SpooledSink` (a bucket behind
a spool folder, for the flusher) and `memory.MemorySink` (tests). `tdcore.testing.SinkContract` holds the
tests that every one must pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias, runtime_checkable

from tdcore.errors import SinkError, SinkErrorKind, SinkKeyError

__all__ = [
    "Buffer",
    "PipelinedSink",
    "ReadAheadSink",
    "Sink",
    "SinkError",
    "SinkErrorKind",
    "SinkKeyError",
    "announce",
    "check_key",
    "check_prefix",
    "delete_all",
    "is_key",
    "put_straight",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

_MAX_KEY_BYTES = 1024


class Sink(Protocol):
    """One run's home.

    Keys are relative to the run, "/"-separated, without empty, "." or ".." parts and without parts that start
    with ".tmp-"; anything else is a ValueError. Threads: one at a time, unless the implementation says more.
    Every refusal is a SinkError whose `kind` says how; no other exception leaves a sink.
    """

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store `parts`, one after the other, as the object `key`; replaces what was there.

        When it returns, the object is durable. Readers see the old object or the new one, never a piece; when
        it raises, the old one. The parts are not kept after the call.
        kind "gone": the run's place had been removed. The next put makes it again, but everything put before
        is lost, so the caller puts again what must be there.
        """

    def put_new(self, key: str, parts: Sequence[Buffer]) -> bool:
        """As put, but only when there is no such object: True when it was made, False when one was there.

        Of several writers at the same time exactly one gets True.
        """
        ...

    def get(self, key: str) -> bytes:
        """The whole object. SinkKeyError when there is none."""

    def tail(self, key: str, length: int) -> bytes:
        """The last `length` bytes of the object, or all of a shorter one. SinkKeyError when there is none."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Pieces of the object: for each (offset, length) its bytes, fewer where the object ends before.

        SinkKeyError when there is no such object.
        """
        ...

    def list(self, prefix: str, after: str = "") -> list[str]:
        """Keys that start with `prefix` and sort after `after`, sorted; unfinished puts are not listed."""

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when there is none."""

    def clean(self, prefix: str) -> None:
        """Remove what unfinished puts under `prefix` have left. Only for the one writer of that prefix."""

    def close(self) -> None:
        """Let go of connections and files. The sink is not used afterwards; closing twice is fine."""


@runtime_checkable
class PipelinedSink(Sink, Protocol):
    """A sink that writes several things at once, for places that are far away. Any thread.

    What its place does not take in time it keeps back on the local disk, where it is as durable.
    """

    @property
    def trouble(self) -> str:
        """Why things are kept back; "" while they are not."""
        ...

    @property
    def waiting(self) -> int:
        """Objects that are kept back."""
        ...

    def left_behind(self) -> str:
        """One sentence: what is kept back, why, and how it gets where it belongs."""
        ...

    def relieve(self) -> None:
        """The memory of what was started is needed: keep it back rather than wait much longer."""

    def report(self) -> dict[str, Any]:
        """What was sent, tried again and kept back so far, in JSON values, for the run's counters."""
        ...

    def start(self, objects: Sequence[tuple[str, Sequence[Buffer]]]) -> Future[None]:
        """Begin to store objects: each is durable before the next one can be seen.

        What earlier calls started becomes visible earlier, too. The parts stay as they are until the future
        is done; it fails with SinkError, and then so do all that are started after it until start_over().
        """
        ...

    def start_over(self) -> None:
        """The caller knows of the failure; all futures are done. What is started from now on stands alone."""

    def start_get(self, key: str) -> Future[bytes]:
        """As get(), without waiting for it."""
        ...

    def put_straight(self, key: str, parts: Sequence[Buffer]) -> None:
        """As put(), without a place in the order and without being kept back: refused rather than late."""

    def start_delete(self, keys: Sequence[str]) -> Future[None]:
        """As delete() of each, several at once, without waiting for it."""
        ...


@runtime_checkable
class ReadAheadSink(Sink, Protocol):
    """A sink that fetches several objects at once when it is told in time. Any thread."""

    def prefetch(self, keys: Sequence[str]) -> None:
        """get() of these keys will be called soon, in this order, once each. Never raises."""


def announce(sink: Sink, keys: Sequence[str]) -> None:
    """get() of these keys comes next: a sink that is far away fetches them at once."""
    if keys and isinstance(sink, ReadAheadSink):
        sink.prefetch(keys)


def put_straight(sink: Sink, key: str, parts: Sequence[Buffer]) -> None:
    """Sink.put, beside what is on its way to a sink that is far away. Raises SinkError."""
    if isinstance(sink, PipelinedSink):
        sink.put_straight(key, parts)
    else:
        sink.put(key, parts)


def delete_all(sink: Sink, keys: Sequence[str]) -> None:
    """Sink.delete of each, at once where the sink can. Raises SinkError; then some may be left."""
    if isinstance(sink, PipelinedSink):
        sink.start_delete(keys).result()
        return
    for key in keys:
        sink.delete(key)


def check_key(key: str) -> str:
    """Return `key` when it is one, else raise ValueError."""
    parts = key.split("/")
    if (
        not key
        or len(key.encode("utf-8", "surrogatepass")) > _MAX_KEY_BYTES
        or any(_bad_part(part) for part in parts)
    ):
        raise ValueError(
            f"{key!r} is not a key of a run; expected a relative path such as 'index/worker_0/x' with "
            f"'/' between parts, no empty, '.' or '..' part, no backslash, and at most {_MAX_KEY_BYTES} bytes"
        )
    return key


def is_key(key: str) -> bool:
    """Whether check_key takes it: in a place of somebody else, anything may be listed."""
    try:
        check_key(key)
    except ValueError:
        return False
    return True


def check_prefix(prefix: str) -> str:
    """Return `prefix` when it can begin a key ("" is fine), else raise ValueError."""
    folders = prefix.split("/")[:-1]
    if any(_bad_part(part) for part in folders) or "\\" in prefix or "\0" in prefix:
        raise ValueError(
            f"{prefix!r} is not the beginning of a key of a run; expected something like 'index/worker_0/'"
        )
    return prefix


def _bad_part(part: str) -> bool:
    return (
        part in ("", ".", "..") or part.startswith(".tmp-") or "\\" in part or any(ord(c) < 32 for c in part)
    )
