"""S3Engine: the interface to a client library of S3. engine_choice.py chooses one of the two engines.

Engines send single requests without retries; `store.S3Store` repeats failed requests. Every failure is an
`errors.S3Error`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol, TypeVar

from tdcore.sinks.base import Buffer
from tdcore.sinks.s3.errors import S3Error

__all__ = ["S3Engine", "within"]

T = TypeVar("T")


class S3Engine(Protocol):
    """One connection pool to one bucket. Keys are full keys in the bucket.

    Thread: the thread of the event loop in which it was opened. The argument `seconds` of the methods is the
    maximum time of one request.
    """

    name: str
    sends_crc32c: bool  # whether put() uses crc32c
    reads_ranges: bool  # False once the service has answered a range with a whole object

    async def put(
        self, key: str, parts: Sequence[Buffer], *, crc32c: int, seconds: float, if_absent: bool = False
    ) -> None:
        """Store `parts`, one after the other.

        The parts are not read after the end of the call, even if it was cancelled.

        Args:
            key: Key of the object.
            parts: The bytes.
            crc32c: Checksum of all bytes, for engines that send it.
            seconds: Maximum time.
            if_absent: Raise an S3Error of kind "exists" if there is an object.
        """

    async def get(self, key: str, *, seconds: float) -> Buffer:
        """The whole object."""
        ...

    async def get_range(self, key: str, offset: int, length: int, *, seconds: float) -> Buffer:
        """`length` > 0 bytes from `offset` on, fewer at the end of the object; S3Error "range" after it."""
        ...

    async def tail(self, key: str, length: int, *, seconds: float) -> Buffer:
        """The last `length` > 0 bytes. For an empty object it may raise S3Error "range"."""
        ...

    async def head(self, key: str, *, seconds: float) -> int | None:
        """Size of the object; None if there is none."""

    def pages(self, prefix: str, after: str, *, seconds: float) -> AsyncIterator[list[str]]:
        """Pages (one request each) of keys that start with `prefix` and sort after `after`, in order."""
        ...

    async def delete(self, key: str, *, seconds: float) -> None:
        """Remove the object if it exists."""

    async def refuses_damage(self, key: str, *, seconds: float) -> bool:
        """Whether the service rejects an object with a wrong checksum. If not, `key` is written."""
        ...

    async def close(self) -> None:
        """Close all connections."""


async def within(seconds: float, work: Awaitable[T]) -> T:
    """The result of `work`. After `seconds` the work is cancelled and S3Error "timeout" is raised."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:  # the same as TimeoutError since Python 3.11
        raise S3Error("timeout") from None
