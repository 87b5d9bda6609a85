"""IndexListing: listing of new index files with as few requests as possible.

A bucket returns a listing in pages of 1,000 keys. Names of index files are sorted by their tickets, so new
files of one worker and attempt (a *home*) come after the last file that was read. One short request for each
home that has not ended returns the new files. If there are more homes than pages, the whole listing is read
instead. A merged file with read and unread rows comes before the last file that was read, so the short
request does not return it. Such a file is found by a whole listing, when the tickets of the files that were
read have a gap and at every thirtieth poll, or by a listing of all files of its home, when the home has
ended. Threads: an object belongs to one Index.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from tdcore.format import layout
from tdcore.trial.fetch import fetch_all

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["Home", "IndexListing"]

Home: TypeAlias = "tuple[str, int]"  # worker and attempt

_PAGE_KEYS = 1000
_WHOLE_EVERY = 30  # polls


class IndexListing:
    """The index files of one run.
    sink: the sink of the run. near: whether the run is on this machine, where a whole listing is cheap.
    """

    def __init__(self, sink: Sink, *, near: bool) -> None:
        self._sink = sink
        self._near = near
        self._homes: set[Home] | None = None  # None before expect()
        self._ended: set[Home] = set()
        self._closed: set[Home] = set()  # ended, and listed to their end
        self._last: dict[Home, str] = {}  # the last key of each home that was read
        self._whole: list[str] | None = None  # the newest whole listing that was read
        self._keys = 0  # approximate number of keys
        self._parts_since = 0  # polls since the last whole listing
        self._found: list[layout.FileRange] = []
        self._found_whole: list[str] | None = None
        self._found_ended: set[Home] = set()

    def expect(self, homes: Iterable[Home], ended: Iterable[Home]) -> None:
        """Set the existing homes and the ended homes, which are listed once more."""
        self._homes = {(worker, attempt) for worker, attempt in homes if layout.valid_worker(worker)}
        self._ended = set(ended)
        self._closed &= self._ended

    def poll(self, *, whole: bool = False) -> list[layout.FileRange] | None:
        """Index files, including all new files; None if nothing has changed. whole: list all files."""
        self._found_ended = set(self._ended)
        homes = self._open_homes()
        if homes is not None and not whole:
            self._found_whole = None
            keys = [key for part in fetch_all(self._sink, self._new_keys, homes) for key in part]
            self._parts_since += 1
        else:
            keys = self._found_whole = self._sink.list(layout.INDEX_PREFIX)
        unchanged = not whole and (keys == self._whole or not keys)
        self._found = [] if unchanged else [file for file in map(layout.parse_index_key, keys) if file]
        if whole or self._found:
            return self._found
        self.accept()
        return None

    def accept(self) -> None:
        """Mark the files of the last poll as read."""
        if self._found_whole is not None:
            self._whole = self._found_whole
            self._keys = len(self._found_whole)
            self._parts_since = 0
            self._closed |= self._found_ended
        else:
            self._keys += len(self._found)
            self._closed |= self._found_ended & ((self._homes or set()) | set(self._last))
        for file in self._found:
            home = (file.worker, file.attempt)
            self._last[home] = max(self._last.get(home, ""), file.index_key)

    def _open_homes(self) -> list[Home] | None:
        """Homes to list one by one; None if a whole listing needs fewer requests."""
        if self._near or self._homes is None or self._whole is None or self._parts_since >= _WHOLE_EVERY:
            return None
        homes = sorted((self._homes | set(self._last)) - self._closed)
        return homes if len(homes) <= max(1, -(-self._keys // _PAGE_KEYS)) else None

    def _new_keys(self, home: Home) -> list[str]:
        worker, attempt = home
        after = "" if home in self._ended else self._last.get(home, "")
        return self._sink.list(f"{layout.index_prefix(worker)}{attempt:04d}-", after)
