"""PartsReader: several buffers as one file, for a client that accepts files only."""

from __future__ import annotations

import bisect
import io
import itertools
import threading
from collections.abc import Sequence

__all__ = ["PartsReader"]


class PartsReader(io.RawIOBase):
    """The bytes of `parts`, one after the other. A read never crosses the end of a part.

    Threads: any, one at a time. After release() the parts are not read any more.
    """

    def __init__(self, parts: Sequence[memoryview]) -> None:
        super().__init__()
        self._parts = [part for part in parts if part.nbytes]
        self._starts = [0, *itertools.accumulate(part.nbytes for part in self._parts)]
        self._at = 0
        self._lock = threading.Lock()  # held while a part is read

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes, or b"" at the end. Raises ValueError after release()."""
        with self._lock:
            if self._at >= self._starts[-1]:
                return b""
            if not self._parts:
                raise ValueError("read after release()")
            number = bisect.bisect_right(self._starts, self._at) - 1
            offset = self._at - self._starts[number]
            piece = bytes(self._parts[number][offset : offset + size if size >= 0 else None])
            self._at += len(piece)
            return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._starts[-1]}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """Position of the next read."""
        return self._at

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def release(self) -> None:
        """Release the parts. Waits for a read in progress."""
        with self._lock:
            self._parts = []
