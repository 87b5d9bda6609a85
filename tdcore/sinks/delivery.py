"""Delivery: the objects of a spool on their way to their bucket. Coroutines; one at a time for a spool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tdcore.errors import RunCorrupt
from tdcore.format.layout import DATA_PREFIX
from tdcore.sinks.base import Buffer
from tdcore.sinks.spool import Spool, SpoolEntry

__all__ = ["Store", "deliver"]

_OBJECTS_AT_ONCE = 16  # the store bounds the requests
_BYTES_AT_ONCE = 64 * 1024 * 1024


class Store(Protocol):
    """Puts and deletes objects, with retries for at most `patience` seconds. s3.S3Store is one."""

    async def put(
        self, key: str, parts: Sequence[Buffer], patience: float | None = None, *, crc32c: int | None = None
    ) -> None:
        """crc32c: of all the bytes, when it is known. Raises SinkError."""

    async def delete(self, key: str) -> None:
        """Nothing happens when there is none. Raises SinkError."""


async def deliver(
    spool: Spool,
    store: Store,
    *,
    sent: Callable[[SpoolEntry], None] = lambda entry: None,
    damaged: Callable[[SpoolEntry, Path], None] = lambda entry, place: None,
) -> bool:
    """Send the oldest objects, segments at once and everything else in order after what came before it.

    Each is removed from the spool when the store has it; one that is damaged is set aside. sent, damaged:
    called for each. False when there was nothing to send. Raises SinkError; what was not sent stays.
    """
    entries = _first(spool.entries)

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
        await asyncio.gather(*segments.values(), return_exceptions=True)  # lets a cancel of our own through
    return bool(entries)


def _first(entries: Sequence[SpoolEntry]) -> Sequence[SpoolEntry]:
    """The oldest ones, as many as may be in memory."""
    size = 0
    for at, entry in enumerate(entries[:_OBJECTS_AT_ONCE]):
        size += entry.size
        if at and size > _BYTES_AT_ONCE:
            return entries[:at]
    return entries[:_OBJECTS_AT_ONCE]
