"""S3Engine: the operations that a client library of S3 has to offer. engine_choice.py chooses one of the two.

Engines do single requests and never retry; `store.S3Store` does. Every failure is a `errors.S3Error`.
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
    """One connection pool to one bucket. Keys are whole keys in the bucket.

    Thread: that of the event loop it was opened in. seconds: how long one request may take in all.
    """

    name: str
    sends_crc32c: bool  # whether put() has a use for crc32c
    reads_ranges: bool  # False once the service has answered a range with a whole object

    async def put(
        self, key: str, parts: Sequence[Buffer], *, crc32c: int, seconds: float, if_absent: bool = False
    ) -> None:
        """Store `parts`, one after the other. if_absent: an S3Error of kind "exists" when there is an object.

        crc32c: of all the bytes; sent along by an engine that sends this checksum. When the call ends, also
        by cancellation, the parts are not looked at any more.
        """

    async def get(self, key: str, *, seconds: float) -> Buffer:
        """The whole object."""
        ...

    async def get_range(self, key: str, offset: int, length: int, *, seconds: float) -> Buffer:
        """`length` > 0 bytes from `offset` on, fewer where the object ends; S3Error "range" after its end."""
        ...

    async def tail(self, key: str, length: int, *, seconds: float) -> Buffer:
        """The last `length` > 0 bytes; S3Error "range" may stand for an empty object."""
        ...

    async def head(self, key: str, *, seconds: float) -> int | None:
        """Size of the object; None when there is none."""

    def pages(self, prefix: str, after: str, *, seconds: float) -> AsyncIterator[list[str]]:
        """Keys that start with `prefix` and sort after `after`, in order, a page (one request) at a time."""
        ...

    async def delete(self, key: str, *, seconds: float) -> None:
        """Remove the object, if there is one."""

    async def refuses_damage(self, key: str, *, seconds: float) -> bool:
        """Whether the service refuses an object whose checksum is wrong. Writes `key` when it does not."""
        ...

    async def close(self) -> None:
        """Close all connections."""


async def within(seconds: float, work: Awaitable[T]) -> T:
    """The result of `work`, or an S3Error "timeout" after so many seconds; the work is cancelled then."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:  # an alias of TimeoutError from Python 3.11 on
        raise S3Error("timeout") from None
