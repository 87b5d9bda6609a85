"""drain_spool: upload the objects of a spool to their bucket. One call at a time for each spool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tdcore.errors import RunCorrupt
from tdcore.format.layout import DATA_PREFIX
from tdcore.sinks.base import Buffer
from tdcore.sinks.spool import Spool, SpoolEntry

__all__ = ["ObjectStore", "drain_spool"]

_OBJECTS_AT_ONCE = 16  # the store limits the number of requests
_BYTES_AT_ONCE = 32 * 1024 * 1024  # the client of the bucket may copy them, which doubles the memory


class ObjectStore(Protocol):
    """A store of objects that retries for at most `patience` seconds, such as s3.S3Store."""

    async def put(
        self, key: str, parts: Sequence[Buffer], patience: float | None = None, *, crc32c: int | None = None
    ) -> None:
        """Store an object. crc32c: checksum of all bytes, if known. Raises SinkError."""

    async def delete(self, key: str) -> None:
        """Delete an object if it exists. Raises SinkError."""


async def drain_spool(
    spool: Spool,
    store: ObjectStore,
    *,
    sent: Callable[[SpoolEntry], None] = lambda entry: None,
    damaged: Callable[[SpoolEntry, Path], None] = lambda entry, place: None,
) -> bool:
    """Upload the oldest objects: segments concurrently, every other object after all objects before it.

    An object is removed from the spool when the store has it; a damaged object is moved aside.

    Args:
        spool: A locked spool.
        store: The bucket.
        sent: Called for each object that was uploaded.
        damaged: Called for each damaged object, with its new path.

    Returns:
        False if the spool was empty.

    Raises:
        SinkError: An upload failed. The objects that were not uploaded stay in the spool.
    """
    entries = _oldest(spool.entries)

    async def send(entry: SpoolEntry) -> None:
        try:
            data = await asyncio.to_thread(spool.read, entry)
        except RunCorrupt:
            damaged(entry, spool.set_aside(entry))
            return
        await store.put(entry.key, [data], crc32c=entry.crc32c)
        spool.remove(entry)
        sent(entry)

    segments = {
        entry.number: asyncio.ensure_future(send(entry))
        for entry in entries
        if entry.key.startswith(DATA_PREFIX)
    }
    try:
        for entry in entries:
            await (segments.get(entry.number) or send(entry))
    finally:
        for task in segments.values():
            task.cancel()
        await asyncio.gather(
            *segments.values(), return_exceptions=True
        )  # a cancellation of this coroutine still propagates
    return bool(entries)


def _oldest(entries: Sequence[SpoolEntry]) -> Sequence[SpoolEntry]:
    """The oldest entries that may be in memory at the same time."""
    size = 0
    for at, entry in enumerate(entries[:_OBJECTS_AT_ONCE]):
        size += entry.size
        if at and size > _BYTES_AT_ONCE:
            return entries[:at]
    return entries[:_OBJECTS_AT_ONCE]
