"""Index: all rows of a run found so far, read while other processes still write and merge the files.

    index = Index(sink)
    new = index.poll()        # pyarrow.Table of rows that no earlier poll returned

Each row is returned exactly once. A ticket is the number of a captured record of one worker and attempt, from
0. The name of a file contains the range of tickets that the file covers. Index stores the tickets that it has
read, so a merged file adds only its new rows. A ticket that no file covers, although a later ticket is
covered, is a hole: files may have been merged during the listing. Index then lists the files again, a few
times. Tickets that are still missing are reported in `holes`, and are read if they appear later. If a file
was deleted by a merge between listing and opening, Index also lists again. listing.py keeps the number of
requests small if the run is remote.

Index takes no locks and writes no files. Threads: one reader, one thread. row_columns.py describes where the
columns are. The column `step` has common steps (common_steps.py): if workers of one run number their steps
differently, the numbers are translated to those of the first worker by rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tdcore.errors import RunCorrupt, SinkKeyError
from tdcore.format import layout
from tdcore.sinks.base import announce
from tdcore.trial.gaps import FileGaps, file_gaps
from tdcore.trial.index_file import FileRows, open_rows
from tdcore.trial.intervals import Intervals
from tdcore.trial.listing import Home, IndexListing
from tdcore.trial.parquet_file import check_run
from tdcore.trial.row_store import Rows, RowStore

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["Arrival", "Hole", "Index", "Rows"]

_RELISTS = 5
_RELIST_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Tickets, inclusive, that no index file covers although later tickets are covered: lost rows."""

    worker: str
    attempt: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Rows of one file that were read: highest own global step, and latest time."""

    worker: str
    attempt: int
    last_step: int
    last_time_ns: int


class Index(RowStore):
    """The rows of a run. The docstring of the module has the guarantees.

    Args:
        sink: The run.
        root: Folder of a local run, whose large files are memory-mapped; None: a remote run.
        wait: Called with seconds between two listings; for tests.
    """

    def __init__(
        self, sink: Sink, root: Path | None = None, *, wait: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__()
        self.file_gaps = FileGaps()
        self.arrivals: list[Arrival] = []  # of the files with rows, in the order in which they were read
        self._sink = sink
        self._root = root
        self._wait = wait
        self._read: dict[tuple[str, int], Intervals] = {}
        self._skipped: dict[tuple[str, int], Intervals] = {}  # tickets that count as read without their rows
        self._listing = IndexListing(sink, near=root is not None)
        self.run_id = ""  # set by the reader of run.json; files with another id are refused
        self._known_holes: list[Hole] = []
        self._whole: dict[Home, int] = {}  # the highest complete step
        self._placed: set[layout.FileRange] = set()  # files whose payload places are in the rows
        self._polled = 0

    @property
    def holes(self) -> list[Hole]:
        """Tickets that are missing so far, by worker and attempt."""
        return [
            Hole(worker=worker, attempt=attempt, first=first, last=last)
            for (worker, attempt), read in sorted(self._read.items())
            for first, last in read.holes()
        ]

    def end(self, worker: str, attempt: int) -> int:
        """The ticket after the last one that was read of this worker and attempt."""
        read = self._read.get((worker, attempt))
        return read.end if read else 0

    def tickets(self, worker: str, attempt: int) -> list[tuple[int, int]]:
        """The tickets that were read of this worker and attempt, as inclusive ranges in order."""
        read = self._read.get((worker, attempt))
        return read.present(0, read.end) if read else []

    def whole_step(self, worker: str, attempt: int) -> int | None:
        """The highest step that this worker has marked as complete in the rows that were read.

        None if the worker marks no steps; -1 if it will mark steps, but has not marked any yet.
        """
        return self._whole.get((worker, attempt))

    @property
    def homes(self) -> list[Home]:
        """The (worker, attempt) pairs with read or skipped tickets."""
        return list(self._read)

    def skip(self, worker: str, attempt: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Count these tickets as read, without their rows. Call it before the first `advance`."""
        home = (worker, attempt)
        for first, last in ranges:
            self._read.setdefault(home, Intervals()).add(first, last)
            self._skipped.setdefault(home, Intervals()).add(first, last)

    def poll(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows that no earlier poll returned, possibly none.

        Args:
            columns: Names of columns; None: all columns of the index.

        Raises:
            RunCorrupt: A file is damaged.
            SinkError: The storage failed.
        """
        self.advance()
        first, self._polled = self._polled, self._rows
        return self.table(np.arange(first, self._rows, dtype=np.int64), columns)

    def advance(self) -> int:
        """Read new rows and return their number. The next `poll` still returns them."""
        before = self._rows
        for again in range(_RELISTS + 1):
            files = self._listing.poll(whole=again > 0)
            if files is None:
                break
            last_try = again == _RELISTS
            if self._read_new(layout.live_ranges(files), last_try):
                self._listing.accept()
                break
            if not last_try:
                self._wait(_RELIST_PAUSE_SECONDS)
        self._known_holes = self.holes
        self.join_small()
        return self._rows - before

    def expect(self, homes: Iterable[Home], ended: Iterable[Home]) -> None:
        """Set the workers and attempts that exist and that have ended, before each `advance`.

        This call saves requests; without it every file is listed.
        """
        self._listing.expect(homes, ended)

    # Reading files. -------------------------------------------------------------------------------

    def _read_new(self, files: Sequence[layout.FileRange], last_try: bool) -> bool:
        """Read new rows of the files. Return False if the files must be listed again."""
        found: list[tuple[layout.FileRange, FileRows]] = []
        try:
            return self._read_files(files, last_try, found)
        finally:
            self._append(found)  # also if a file is damaged: the files before it were read

    def _read_files(
        self,
        files: Sequence[layout.FileRange],
        last_try: bool,
        found: list[tuple[layout.FileRange, FileRows]],
    ) -> bool:
        complete, chosen = self._choose(files, last_try)
        announce(self._sink, [file.index_key for file, _ in chosen])
        stopped: set[Home] = set()  # a file vanished: later files wait for the next listing
        in_memory = self.in_memory_rows
        for file, wanted in chosen:
            home = (file.worker, file.attempt)
            if home in stopped:
                continue
            try:
                rows = open_rows(
                    self._sink, self._root, file, wanted, self.dictionaries, self.cache, in_memory=in_memory
                )
            except SinkKeyError:
                complete = False
                stopped.add(home)
                continue
            check_run(file.index_key, rows.metadata, self.run_id)
            found.append((file, rows))
            in_memory += 0 if rows.arrays is None else len(rows.arrays["step"])
            self.file_gaps.add(file, file_gaps(file, rows.metadata))
            whole = layout.whole_step(rows.metadata)
            if whole is not None:
                self._whole[home] = max(whole, self._whole.get(home, whole))
            if wanted == [(file.first, file.last)]:
                self._placed.add(file)
            self._read[home].add(file.first, file.last)
        return complete

    def _choose(
        self, files: Sequence[layout.FileRange], last_try: bool
    ) -> tuple[bool, list[tuple[layout.FileRange, list[tuple[int, int]]]]]:
        """Choose files: (whether there is no new hole, the files with new tickets and these tickets).

        Files after a new hole wait for the next listing, unless this is the last try.
        """
        complete = True
        chosen: list[tuple[layout.FileRange, list[tuple[int, int]]]] = []
        ends: dict[Home, int] = {}  # the ticket after the last one that will be read
        stopped: set[Home] = set()
        for file in files:
            home = (file.worker, file.attempt)
            read = self._read.setdefault(home, Intervals())
            wanted = read.missing(file.first, file.last)
            end = ends.setdefault(home, read.end)
            if not wanted or home in stopped:
                continue
            if self._is_new_hole(file, end):
                complete = False
                if not last_try:
                    stopped.add(home)
                    continue
            chosen.append((file, wanted))
            ends[home] = max(end, file.last + 1)
        return complete, chosen

    def _is_new_hole(self, file: layout.FileRange, end: int) -> bool:
        if file.first <= end:
            return False
        hole = Hole(worker=file.worker, attempt=file.attempt, first=end, last=file.first - 1)
        return hole not in self._known_holes

    def _append(self, found: Sequence[tuple[layout.FileRange, FileRows]]) -> None:
        """Add the rows of files."""
        self.add([rows for _, rows in found], [file for file, _ in found])
        for file, rows in found:
            if rows.arrays is not None:
                steps, times = rows.arrays["step"], rows.arrays["time_ns"]
                last_time = int(times.max()) if len(times) else -1
            else:
                assert rows.catalogue is not None
                steps, last_time = rows.catalogue.stretches["step"], rows.catalogue.last_time_ns
            if len(steps):
                self.arrivals.append(
                    Arrival(
                        worker=file.worker,
                        attempt=file.attempt,
                        last_step=int(steps.max()),
                        last_time_ns=last_time,
                    )
                )

    # Payloads that moved. -------------------------------------------------------------------------

    def relocate(self, rows: Rows | int) -> bool:
        """Find the new places of the payloads of these rows, after their segment was merged.

        Reads the newest index files that cover the rows, and updates the places of all rows in them.

        Returns:
            Whether a place changed. A merged index file exists before the old segments are deleted, so False
            means that the bytes are lost.

        Raises:
            RunCorrupt: A file contradicts the rows that were read before.
        """
        chosen = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        tickets, attempts = self.column("ticket")[chosen], self.column("attempt")[chosen]
        texts = self.texts("worker")
        places = {
            (texts[worker], attempt, ticket)
            for worker, attempt, ticket in zip(
                self.column("worker")[chosen].tolist(), attempts.tolist(), tickets.tolist(), strict=True
            )
        }
        workers = {worker for worker, _, _ in places}
        changed = False
        for _ in range(_RELISTS):
            complete = True
            for file in self._live_files(workers):
                if file not in self._placed and any(_covers(file, place) for place in places):
                    try:
                        self._take_places(file)
                        changed = True
                    except SinkKeyError:
                        complete = False
            if complete:
                break
        return changed

    def _live_files(self, workers: Iterable[str]) -> list[layout.FileRange]:
        keys = [key for worker in workers for key in self._sink.list(layout.index_prefix(worker))]
        return layout.live_ranges(filter(None, map(layout.parse_index_key, keys)))

    def _take_places(self, file: layout.FileRange) -> None:
        opened = open_rows(self._sink, self._root, file, self._here(file), self.dictionaries)
        check_run(file.index_key, opened.metadata, self.run_id)
        arrays = opened.arrays
        assert arrays is not None
        stretches, worker = self.stretches, self.dictionaries["worker"].code(file.worker)
        of_home = (stretches.column("worker") == worker) & (stretches.column("attempt") == file.attempt)
        mine = stretches.rows_of(np.flatnonzero(of_home))
        column = self.column
        tickets = column("ticket")[mine]
        mine = mine[(tickets >= file.first) & (tickets <= file.last)]
        identity = ("ticket", "seq", "part", "name", "call")
        here = {name: column(name)[mine] for name in identity}
        order_here = np.lexsort([here[name] for name in reversed(identity)])
        order_there = np.lexsort([arrays[name] for name in reversed(identity)])
        same = len(mine) == len(order_there) and all(
            np.array_equal(here[name][order_here], arrays[name][order_there]) for name in identity
        )
        if not same:
            raise RunCorrupt(f"{file.index_key} does not contain the rows of the files that it replaced")
        for name in ("segment", "offset", "nbytes", "crc32c"):
            self.replace(name, mine[order_here], arrays[name][order_there])
        self._placed = {other for other in self._placed if not file.contains(other)} | {file}

    def _here(self, file: layout.FileRange) -> list[tuple[int, int]]:
        """The tickets of a file whose rows were read."""
        home = (file.worker, file.attempt)
        read, skipped = self._read[home].present(file.first, file.last), self._skipped.get(home)
        if skipped is None:
            return read
        return [part for first, last in read for part in skipped.missing(first, last)]


def _covers(file: layout.FileRange, place: tuple[str, int, int]) -> bool:
    worker, attempt, ticket = place
    return file.worker == worker and file.attempt == attempt and file.first <= ticket <= file.last
