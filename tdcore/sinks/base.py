"""Sink: storage of the files of one run. tdcore writes runs only through a sink.

Implementations: `local.LocalSink` (a folder), `s3.S3Sink` (a bucket), `spooled.SpooledSink` (a bucket behind
a spool folder, for the flusher) and `memory.MemorySink` (tests). `tdcore.testing.SinkContract` has the tests
that every implementation must pass.
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
    """The files ("objects") of one run.

    Keys are relative to the run, "/"-separated, without empty, "." or ".." parts and without parts that start
    with ".tmp-"; any other key raises ValueError. Every failure is a SinkError with a `kind`; a sink raises
    no other exception. Threads: one at a time, unless the implementation documents more.
    """

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store `parts`, one after the other, as the object `key`. An existing object is replaced.

        The object is durable when the call returns. Readers get the old object or the new object, never a
        part; after an exception they get the old object. The parts are not referenced after the call.

        SinkError with kind "gone" means that the place of the run was removed. The next put creates the place
        again, but all objects stored before are lost, so the caller must store them again.
        """

    def put_new(self, key: str, parts: Sequence[Buffer]) -> bool:
        """Store the object like put() only if it does not exist. Return whether it was created.

        Of several concurrent writers exactly one gets True.
        """
        ...

    def get(self, key: str) -> bytes:
        """The whole object. Raises SinkKeyError if it does not exist."""

    def tail(self, key: str, length: int) -> bytes:
        """The last `length` bytes of the object, or all of a shorter one. Raises SinkKeyError."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """The bytes of each (offset, length); fewer if the object ends earlier.

        Raises SinkKeyError if the object does not exist.
        """
        ...

    def list(self, prefix: str, after: str = "") -> list[str]:
        """Sorted keys that start with `prefix` and sort after `after`, without unfinished puts."""

    def delete(self, key: str) -> None:
        """Remove the object if it exists."""

    def clean(self, prefix: str) -> None:
        """Remove files of unfinished puts under `prefix`. Only the writer of that prefix may call this."""

    def close(self) -> None:
        """Close connections and files. The sink cannot be used afterwards. Later calls have no effect."""


@runtime_checkable
class PipelinedSink(Sink, Protocol):
    """A sink for remote places that can have several writes in progress. Any thread.

    Objects that the place does not accept in time are kept on the local disk, where they are durable.
    """

    @property
    def trouble(self) -> str:
        """The reason why objects are kept on the local disk; "" if there are none."""
        ...

    @property
    def waiting(self) -> int:
        """Number of objects that are kept on the local disk."""
        ...

    def left_behind(self) -> str:
        """A sentence with the number of objects on the local disk, the reason, and how to upload them."""
        ...

    def relieve(self) -> None:
        """Free the memory of writes in progress by storing slow writes on the local disk."""

    def upload_totals(self) -> tuple[int, int, int]:
        """Bytes that are durable, bytes that the place has accepted, and nanoseconds of all uploads.

        Each object counts once, when it is stored. The time of all uploads is added up, with failed tries.
        """
        ...

    def report(self) -> dict[str, Any]:
        """Counts of uploads, retries and objects kept on the local disk so far, as JSON values."""
        ...

    def start(self, objects: Sequence[tuple[str, Sequence[Buffer]]]) -> Future[None]:
        """Start to store objects. Each object is durable before the next one becomes visible.

        Objects of earlier calls become visible first. The caller must not change the parts until the future
        is done. After a failure (SinkError), all later calls fail too until start_over().
        """
        ...

    def start_over(self) -> None:
        """Accept writes again after a failure. The caller must have waited for all futures."""

    def start_get(self, key: str) -> Future[bytes]:
        """Like get(), without waiting for the result."""
        ...

    def put_straight(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store an object without an order and never on the local disk. Raises if this is impossible."""

    def start_delete(self, keys: Sequence[str]) -> Future[None]:
        """Start to delete each key, several at a time, without waiting for the result."""
        ...


@runtime_checkable
class ReadAheadSink(Sink, Protocol):
    """A sink that can fetch several objects ahead at the same time. Any thread."""

    def prefetch(self, keys: Sequence[str]) -> None:
        """Fetch these keys ahead. get() must be called once for each key, in this order. Never raises."""


def announce(sink: Sink, keys: Sequence[str]) -> None:
    """Fetch these keys ahead if the sink supports this, because the caller will get() them."""
    if keys and isinstance(sink, ReadAheadSink):
        sink.prefetch(keys)


def put_straight(sink: Sink, key: str, parts: Sequence[Buffer]) -> None:
    """Put an object, without waiting for the writes in progress of a PipelinedSink. Raises SinkError."""
    if isinstance(sink, PipelinedSink):
        sink.put_straight(key, parts)
    else:
        sink.put(key, parts)


def delete_all(sink: Sink, keys: Sequence[str]) -> None:
    """Delete each key, concurrently if the sink supports this. After a SinkError keys may be left."""
    if isinstance(sink, PipelinedSink):
        sink.start_delete(keys).result()
        return
    for key in keys:
        sink.delete(key)


def check_key(key: str) -> str:
    """Return `key` if it is valid, else raise ValueError."""
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
    """Whether the key is valid. A listing may contain invalid keys if other programs write to the place."""
    try:
        check_key(key)
    except ValueError:
        return False
    return True


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it can be the start of a key ("" is valid), else raise ValueError."""
    folders = prefix.split("/")[:-1]
    if any(_bad_part(part) for part in folders) or "\\" in prefix or "\0" in prefix:
        raise ValueError(
            f"{prefix!r} is not the beginning of a key of a run; expected a prefix such as 'index/worker_0/'"
        )
    return prefix


def _bad_part(part: str) -> bool:
    return (
        part in ("", ".", "..") or part.startswith(".tmp-") or "\\" in part or any(ord(c) < 32 for c in part)
    )
