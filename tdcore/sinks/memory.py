"""MemorySink: a run in memory, for tests, with injected faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tdcore.sinks.base import Buffer, SinkKeyError, check_key, check_prefix

__all__ = ["MemorySink"]


class MemorySink:
    """A run in memory, for tests. Any thread.

    Attributes:
        fault: Called as fault(operation, key) before each operation ("put", "put_new", "get", "tail",
            "get_ranges", "list", "delete" or "clean"). Its exceptions are raised, so a test can make
            operations fail, delay or count them. The attribute may be set at any time.
    """

    def __init__(self) -> None:
        self.fault: Callable[[str, str], None] | None = None
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See Sink.put."""
        check_key(key)
        self._inject("put", key)
        data = b"".join(bytes(part) for part in parts)
        with self._lock:
            self.objects[key] = data

    def put_new(self, key: str, parts: Sequence[Buffer]) -> bool:
        """See Sink.put_new."""
        check_key(key)
        self._inject("put_new", key)
        data = b"".join(bytes(part) for part in parts)
        with self._lock:
            return self.objects.setdefault(key, data) is data

    def get(self, key: str) -> bytes:
        """See Sink.get."""
        check_key(key)
        self._inject("get", key)
        return self._find(key)

    def tail(self, key: str, length: int) -> bytes:
        """See Sink.tail."""
        check_key(key)
        self._inject("tail", key)
        data = self._find(key)
        return data[max(0, len(data) - length) :]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """See Sink.get_ranges."""
        check_key(key)
        self._inject("get_ranges", key)
        data = self._find(key)
        return [data[offset : offset + length] for offset, length in ranges]

    def list(self, prefix: str, after: str = "") -> list[str]:
        """See Sink.list."""
        check_prefix(prefix)
        self._inject("list", prefix)
        with self._lock:
            return sorted(key for key in self.objects if key.startswith(prefix) and key > after)

    def delete(self, key: str) -> None:
        """See Sink.delete."""
        check_key(key)
        self._inject("delete", key)
        with self._lock:
            self.objects.pop(key, None)

    def clean(self, prefix: str) -> None:
        """See Sink.clean. A put in memory leaves no unfinished object."""
        check_prefix(prefix)
        self._inject("clean", prefix)

    def close(self) -> None:
        """Keep the objects, because tests read them after the flusher has closed its sink."""

    def _inject(self, operation: str, key: str) -> None:
        fault = self.fault
        if fault is not None:
            fault(operation, key)

    def _find(self, key: str) -> bytes:
        with self._lock:
            data = self.objects.get(key)
        if data is None:
            raise SinkKeyError(f"memory sink: nothing under {key!r}")
        return data
