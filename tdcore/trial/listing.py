"""IndexListing: which index files have come, found with as few requests as possible.

A place that is far away answers a listing in pages of 1,000 keys. Names of index files grow with their
tickets, so that new files of one worker and attempt (a *home*) stand behind the last one that was read, and
one short request per home that still goes on finds them. Where homes are more than the pages of a whole
listing, the whole listing is taken. A file that merges read and unread rows stands before the last one: the
hole that it leaves, the home's end, or every thirtieth look finds it. Threads: belongs to one Index.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from tdcore import layout
from tdcore.trial.fetch import fetch_all

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["Home", "IndexListing"]

Home: TypeAlias = "tuple[str, int]"  # worker and attempt

_PAGE_KEYS = 1000
_WHOLE_EVERY = 30  # looks


class IndexListing:
    """sink: where the run is. near: whether that is this machine, where a whole listing costs nothing."""

    def __init__(self, sink: Sink, *, near: bool) -> None:
        self._sink = sink
        self._near = near
        self._homes: set[Home] | None = None  # that are known of; None: nobody has told
        self._ended: set[Home] = set()
        self._closed: set[Home] = set()  # ended, and listed to their end
        self._last: dict[Home, str] = {}  # the last key of each home that was read
        self._whole: list[str] | None = None  # the newest whole listing that was read
        self._keys = 0  # about how many there are
        self._parts_since = 0  # looks since the last whole listing
        self._looked: list[layout.FileRange] = []
        self._looked_whole: list[str] | None = None
        self._looked_ended: set[Home] = set()

    def expect(self, homes: Iterable[Home], ended: Iterable[Home]) -> None:
        """Which homes there are, and which of them get no more rows: those are listed once more."""
        self._homes = {(worker, attempt) for worker, attempt in homes if layout.valid_worker(worker)}
        self._ended = set(ended)
        self._closed &= self._ended

    def look(self, *, whole: bool = False) -> list[layout.FileRange] | None:
        """Index files of which some may be new; None when nothing has changed. whole: all that there are."""
        self._looked_ended = set(self._ended)
        homes = self._open_homes()
        if homes is not None and not whole:
            self._looked_whole = None
            keys = [key for part in fetch_all(self._sink, self._new_keys, homes) for key in part]
            self._parts_since += 1
        else:
            keys = self._looked_whole = self._sink.list(layout.INDEX_PREFIX)
        unchanged = not whole and (keys == self._whole or not keys)
        self._looked = [] if unchanged else [file for file in map(layout.parse_index_key, keys) if file]
        if whole or self._looked:
            return self._looked
        self.accept()
        return None

    def accept(self) -> None:
        """What the last look found was read."""
        if self._looked_whole is not None:
            self._whole = self._looked_whole
            self._keys = len(self._looked_whole)
            self._parts_since = 0
            self._closed |= self._looked_ended
        else:
            self._keys += len(self._looked)
            self._closed |= self._looked_ended & ((self._homes or set()) | set(self._last))
        for file in self._looked:
            home = (file.worker, file.attempt)
            self._last[home] = max(self._last.get(home, ""), file.index_key)

    def _open_homes(self) -> list[Home] | None:
        """Homes to list one by one; None when a whole listing is better."""
        if self._near or self._homes is None or self._whole is None or self._parts_since >= _WHOLE_EVERY:
            return None
        homes = sorted((self._homes | set(self._last)) - self._closed)
        return homes if len(homes) <= max(1, -(-self._keys // _PAGE_KEYS)) else None

    def _new_keys(self, home: Home) -> list[str]:
        worker, attempt = home
        after = "" if home in self._ended else self._last.get(home, "")
        return self._sink.list(f"{layout.index_prefix(worker)}{attempt:04d}-", after)
