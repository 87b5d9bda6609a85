"""PendingDocuments: documents of the run, such as collections.json, that are passed through the ring.

The object also remembers small files that are written again when the folder of the run was removed.
Threads: only the flusher's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from tdcore.sinks.base import Sink, SinkError, is_key

__all__ = ["PendingDocuments"]


class PendingDocuments:
    """The newest bytes of each document, and the keys of the documents that are not saved yet."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._newest: dict[str, bytes] = {}
        self._unsaved: set[str] = set()

    @property
    def unsaved(self) -> list[tuple[str, bytes]]:
        """Key and bytes of each document that must be written."""
        return [(key, self._newest[key]) for key in sorted(self._unsaved)]

    def mark_saved(self, key: str, data: bytes) -> None:
        """Record that these bytes are durable."""
        if self._newest.get(key) == data:
            self._unsaved.discard(key)

    def load(self, keys: Iterable[str]) -> None:
        """Read the run's files `keys` and keep them for restore(). Files that cannot be read are skipped."""
        for key in keys:
            if key not in self._newest:
                with contextlib.suppress(SinkError):
                    self._newest[key] = self._sink.get(key)

    def update(self, documents: Iterable[tuple[str, bytes]]) -> None:
        """Add documents from the ring, in order. Unchanged documents and invalid keys are skipped."""
        for key, data in documents:
            if self._newest.get(key) != data and is_key(key):
                self._newest[key] = data
                self._unsaved.add(key)

    def restore(self) -> None:
        """Mark all documents as not saved, because the run's folder was removed."""
        self._unsaved.update(self._newest)
