"""Segments: access to the files with payloads, memory-mapped in a local run, read in ranges in a remote one.

Threads: an object belongs to one reader. Any thread may use the returned memory, which stays valid.
"""

from __future__ import annotations

import mmap
import os
import re
from bisect import bisect_right, insort
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tdcore.errors import RunCorrupt, SinkKeyError, UnsafeFile
from tdcore.sinks.run_folder import RunFolder
from tdcore.trial.fetch import fetch_all

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["HELD_BYTES", "FetchedSegments", "MappedSegments", "SegmentRange", "Segments", "joined"]

HELD_BYTES = 256 << 20  # maximum for blocks of remote segments in memory
_AHEAD_BYTES = 64 << 20  # maximum that is requested at a time
_MAPPED_SEGMENTS = 64
_RUN_ID = re.compile(
    rb'\{"__metadata__":\{"run_id":"([^"\\]{1,128})"'
)  # start of a header that tdcore writes
_RUN_ID_BYTES = 256
_GAP_BYTES = 1 << 20  # ranges with a smaller gap are joined into one request
_MAX_WINDOW_BYTES = 8 << 20  # maximum number of bytes that are fetched in addition
_BLOCK_BYTES = 64 << 10  # requests begin and end at multiples of this


class SegmentRange(NamedTuple):
    """A range of bytes in a segment."""

    key: str
    offset: int
    nbytes: int


class Segments(Protocol):
    """The segments of one run."""

    def holds(self, place: SegmentRange) -> bool:
        """Whether these bytes can be read without a request."""
        ...

    def expect(self, places: Sequence[SegmentRange]) -> int:
        """Announce ranges that will be read next, in this order, so that few requests are needed.

        Returns how many of them, from the first on, were fetched. A missing segment raises an error only in
        `read`.
        """
        ...

    def read(self, place: SegmentRange) -> memoryview:
        """The bytes; fewer if the segment ends earlier. Raises SinkKeyError if the segment does not exist."""
        ...

    def forget(self, key: str) -> bool:
        """Drop the held bytes of a segment. Return whether reading it again may return other bytes."""
        ...


class MappedSegments:
    """Segments of a local run. root: its folder; no file outside is read. run_id: see Payloads."""

    def __init__(self, root: Path, run_id: Callable[[], str] = str) -> None:
        self._root = root
        self._run_id = run_id
        self._folder = RunFolder(root)
        self._open: OrderedDict[str, memoryview] = OrderedDict()  # least recently used first

    def holds(self, place: SegmentRange) -> bool:
        """See Segments.holds."""
        return True

    def expect(self, places: Sequence[SegmentRange]) -> int:
        """See Segments.expect. Nothing is fetched, because the kernel reads ahead."""
        return len(places)

    def read(self, place: SegmentRange) -> memoryview:
        """See Segments.read."""
        held = self._open.get(place.key)
        if held is None or not self._still_backed(place.key, held):
            held = self._open[place.key] = self._mapped(place.key)
            while len(self._open) > _MAPPED_SEGMENTS:
                self._open.popitem(last=False)
        self._open.move_to_end(place.key)
        return held[place.offset : place.offset + place.nbytes]

    def forget(self, key: str) -> bool:
        """See Segments.forget. A mapping always has the current contents of the file."""
        return False

    def _still_backed(self, key: str, held: memoryview) -> bool:
        """False if a mapped file was truncated: an access beyond its end would kill the process."""
        try:
            return (self._root / key).lstat().st_size >= len(held)
        except OSError:
            return True  # deleted: the mapping keeps the bytes

    def _mapped(self, key: str) -> memoryview:
        try:
            with self._folder.file(key) as descriptor:
                size = os.fstat(descriptor).st_size
                if size == 0:
                    return memoryview(b"")
                mapped = memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
        except UnsafeFile:
            raise
        except FileNotFoundError as error:
            raise SinkKeyError(f"{key} does not exist any more") from error
        except (OSError, ValueError) as error:  # ValueError: too large to map on this machine
            reason = error.strerror if isinstance(error, OSError) else error
            raise RunCorrupt(f"{key} cannot be read: {reason}; check its owner and mode") from error
        found, run_id = _run_of(mapped), self._run_id()
        if found and run_id and found != run_id:
            raise RunCorrupt(
                f"{key} is of run {found[:64]!r}, run.json is of {run_id[:64]!r}: the file is a copy "
                "from another run; remove it, and copy only whole runs"
            )
        return mapped


def _run_of(segment: memoryview) -> str:
    """The run's id in the header of a segment; "" in files of older versions."""
    found = _RUN_ID.match(segment[8 : 8 + _RUN_ID_BYTES])
    return found[1].decode("ascii", "replace") if found else ""


class FetchedSegments:
    """Segments of a run that is not local, read in blocks; the last `held_bytes` of them stay in memory."""

    def __init__(self, sink: Sink, *, held_bytes: int = HELD_BYTES) -> None:
        self._sink = sink
        self._held_bytes = held_bytes
        self._bytes = 0
        self._before = SegmentRange("", 0, 0)  # the range of the last read that fetched bytes
        self._blocks: OrderedDict[tuple[str, int], memoryview] = OrderedDict()  # least recently used first
        # Offsets of the blocks in memory, by segment.
        self._firsts: defaultdict[str, list[int]] = defaultdict(list)

    def holds(self, place: SegmentRange) -> bool:
        """See Segments.holds."""
        return place.nbytes == 0 or self._block(place) is not None

    def expect(self, places: Sequence[SegmentRange]) -> int:
        """See Segments.expect. Fetches as many ranges as fit well into memory."""
        lacking: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        taken = cost = 0
        for place in places:
            cost += _cost(place, places[taken - 1] if taken else None)
            if taken and cost > _AHEAD_BYTES:
                break
            taken += 1
            if place.nbytes and place.offset >= 0 and self._block(place) is None:
                lacking[place.key].append((place.offset, place.nbytes))
        wanted = [(key, joined(ranges)) for key, ranges in lacking.items()]
        for (key, ranges), blocks in zip(wanted, fetch_all(self._sink, self._fetched, wanted), strict=True):
            for (first, _), block in zip(ranges, blocks, strict=False):  # no blocks if the segment is missing
                self._hold(key, first, block)
        return taken

    def read(self, place: SegmentRange) -> memoryview:
        """See Segments.read."""
        block = self._block(place)
        if block is None:
            ((first, nbytes),) = joined([(place.offset, self._window(place))])
            (fetched,) = self._sink.get_ranges(place.key, [(first, nbytes)])
            block = first, memoryview(fetched)
            self._hold(place.key, *block)
            self._before = SegmentRange(place.key, first, nbytes)
        first, data = block
        return data[place.offset - first : place.offset - first + place.nbytes]

    def forget(self, key: str) -> bool:
        """See Segments.forget."""
        for first in list(self._firsts.get(key, ())):
            self._drop(key, first)
        return True

    def _window(self, place: SegmentRange) -> int:
        """Number of bytes to fetch for a place; it grows while reads are consecutive."""
        before = self._before
        if place.key != before.key or not 0 <= place.offset - before.offset <= before.nbytes + _GAP_BYTES:
            return place.nbytes
        return max(place.nbytes, min(2 * before.nbytes, _MAX_WINDOW_BYTES, self._held_bytes // 4))

    def _fetched(self, wanted: tuple[str, Sequence[tuple[int, int]]]) -> list[memoryview]:
        key, ranges = wanted
        try:
            return [memoryview(data) for data in self._sink.get_ranges(key, ranges)]
        except SinkKeyError:  # merged or lost: read() raises
            return []

    def _block(self, place: SegmentRange) -> tuple[int, memoryview] | None:
        """The held block that contains all bytes of a place, and its offset."""
        firsts = self._firsts.get(place.key)
        at = bisect_right(firsts, place.offset) - 1 if firsts else -1
        if not firsts or at < 0:
            return None
        block = self._blocks[place.key, firsts[at]]
        if place.offset + place.nbytes > firsts[at] + len(block):
            return None
        self._blocks.move_to_end((place.key, firsts[at]))
        return firsts[at], block

    def _hold(self, key: str, first: int, block: memoryview) -> None:
        for other in [each for each in self._firsts.get(key, ()) if each >= first]:
            if other + len(self._blocks[key, other]) <= first + len(block):
                self._drop(key, other)  # contained in the new block
        self._blocks[key, first] = block
        insort(self._firsts[key], first)
        self._bytes += len(block)
        while self._bytes > self._held_bytes and len(self._blocks) > 1:
            self._drop(*next(iter(self._blocks)))

    def _drop(self, key: str, first: int) -> None:
        self._bytes -= len(self._blocks.pop((key, first)))
        firsts = self._firsts[key]
        firsts.remove(first)
        if not firsts:
            del self._firsts[key]


def _cost(place: SegmentRange, before: SegmentRange | None) -> int:
    """Approximate number of bytes to fetch a place after another place."""
    if before is not None and before.key == place.key:
        gap = place.offset - before.offset - before.nbytes
        if 0 <= gap <= _GAP_BYTES:
            return place.nbytes + gap
    return place.nbytes + 2 * _BLOCK_BYTES


def joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(offset, length) pairs in whole blocks, sorted. Neighbouring ranges are joined."""
    found: list[tuple[int, int]] = []
    for offset, nbytes in sorted(ranges):
        first = offset - offset % _BLOCK_BYTES
        end = -(-(offset + nbytes) // _BLOCK_BYTES) * _BLOCK_BYTES
        if found and first - sum(found[-1]) <= _GAP_BYTES:
            first, last_end = found[-1][0], sum(found[-1])
            found[-1] = (first, max(end, last_end) - first)
        else:
            found.append((first, end - first))
    return found
