"""Small files of the run that come through the ring (collections.json), and those to restore when the
folder vanishes.

One thread: the flusher's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from tdcore.sinks.base import Sink, SinkError, is_key

__all__ = ["Documents"]


class Documents:
    """The newest bytes of each document; the last one put into the ring wins."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._newest: dict[str, bytes] = {}
        self._unsaved: set[str] = set()

    @property
    def unsaved(self) -> list[tuple[str, bytes]]:
        """What waits to be written."""
        return [(key, self._newest[key]) for key in sorted(self._unsaved)]

    def saved(self, key: str, data: bytes) -> None:
        """These bytes are durable."""
        if self._newest.get(key) == data:
            self._unsaved.discard(key)

    def load(self, keys: Iterable[str]) -> None:
        """Remember what the run holds under `keys`, as far as it can be read, so that restore() can put it
        back."""
        for key in keys:
            if key not in self._newest:
                with contextlib.suppress(SinkError):
                    self._newest[key] = self._sink.get(key)

    def update(self, documents: Iterable[tuple[str, bytes]]) -> None:
        """Take what came out of the ring, in order. Unchanged ones and impossible keys are passed over."""
        for key, data in documents:
            if self._newest.get(key) != data and is_key(key):
                self._newest[key] = data
                self._unsaved.add(key)

    def restore(self) -> None:
        """The run's folder was removed: write all of them again."""
        self._unsaved.update(self._newest)
