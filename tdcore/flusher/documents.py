"""Small files of the run that come through the ring (collections.json), and those to restore when the
folder vanishes.

One thread: the flusher's.
"""

from __future__ import annotations

from collections.abc import Iterable

from tdcore.sinks.base import Sink, SinkKeyError, check_key

__all__ = ["Documents"]


class Documents:
    """The newest bytes of each document; the last one put into the ring wins."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._newest: dict[str, bytes] = {}
        self._unsaved: set[str] = set()

    @property
    def unsaved(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._unsaved)

    def load(self, keys: Iterable[str]) -> None:
        """Remember what the run holds under `keys`, so that restore() can put it back. Raises SinkError."""
        for key in keys:
            if key not in self._newest:
                try:
                    self._newest[key] = self._sink.get(key)
                except SinkKeyError:
                    continue

    def update(self, documents: Iterable[tuple[str, bytes]]) -> None:
        """Take what came out of the ring, in order. Unchanged ones and impossible keys are passed over."""
        for key, data in documents:
            if self._newest.get(key) != data and _is_key(key):
                self._newest[key] = data
                self._unsaved.add(key)

    def restore(self) -> None:
        """The run's folder was removed: write all of them again."""
        self._unsaved.update(self._newest)

    def save(self) -> None:
        """Write what is unsaved. Raises SinkError; what was not written stays unsaved."""
        for key in sorted(self._unsaved):
            self._sink.put(key, [self._newest[key]])
            self._unsaved.discard(key)


def _is_key(key: str) -> bool:
    try:
        check_key(key)
    except ValueError:
        return False
    return True
