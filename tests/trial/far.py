"""FarSink: a sink in memory that behaves like a remote one, and counts its requests."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tdcore.sinks import MemorySink
from tdcore.sinks.base import Buffer


class FarSink(MemorySink):
    """A ReadAheadSink for any thread.

    requests: (operation, key) of each request; every page of a listing is one request. waits: requests for
    which a caller had to wait, because the object was not announced in time. sent: bytes of the answers.
    page_keys: number of keys per page of a listing.
    """

    def __init__(self, root: Path | None = None, *, page_keys: int = 1000) -> None:
        super().__init__()
        self.page_keys = page_keys
        self.requests: list[tuple[str, str]] = []
        self.waits: list[tuple[str, str]] = []
        self.sent = 0
        self._announced: Counter[str] = Counter()
        self._counting = threading.Lock()
        if root is not None:
            self.follow(root)

    def follow(self, root: Path) -> None:
        """Copy the current content of the folder."""
        files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
        self.objects = {key: path.read_bytes() for key, path in files.items()}

    def reset(self) -> None:
        """Reset the counters."""
        self.requests, self.waits, self.sent = [], [], 0

    def count(self, operation: str) -> int:
        """Return the number of requests of one kind."""
        return sum(each == operation for each, _ in self.requests)

    def prefetch(self, keys: Sequence[str]) -> None:
        """See ReadAheadSink.prefetch."""
        self._announced.update(keys)

    def get(self, key: str) -> bytes:
        """See Sink.get."""
        data = super().get(key)
        self._note("get", key, sent=len(data), waited=not self._announced[key])
        self._announced[key] = max(0, self._announced[key] - 1)
        return data

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """See Sink.get_ranges. Each range is a request, and the caller waits for all of them at once."""
        pieces = super().get_ranges(key, ranges)
        for at, piece in enumerate(pieces):
            self._note("get_ranges", key, sent=len(piece), waited=at == 0)
        return pieces

    def list(self, prefix: str, after: str = "") -> list[str]:
        """See Sink.list."""
        keys = super().list(prefix, after)
        for _ in range(max(1, -(-len(keys) // self.page_keys))):
            self._note("list", prefix)
        return keys

    def _note(self, operation: str, key: str, *, sent: int = 0, waited: bool = True) -> None:
        with self._counting:
            self.requests.append((operation, key))
            self.sent += sent
            if waited:
                self.waits.append((operation, key))
