"""RowFileWriter: writes numbered rows of one worker and attempt as Parquet files (format/row_files.py).

Files of the same size are merged, so a run has few of them. A failing sink never stops the flusher: the rows
stay with the caller, which passes them again. Threads: the flusher's. With a remote sink, writes and merges
run in another thread, one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from tdcore.flusher.messages import print_message
from tdcore.flusher.options import FlusherOptions
from tdcore.format.layout import FileRange, live_ranges
from tdcore.format.row_files import RowFiles
from tdcore.sinks.base import (
    PipelinedSink,
    Sink,
    SinkError,
    SinkKeyError,
    announce,
    delete_all,
    put_straight,
)

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["RowFileWriter"]

Rows: TypeAlias = "Sequence[Any] | npt.NDArray[Any]"

_MERGE_FAN_IN = 16  # files that become one


class RowFileWriter:
    """Writer of the files of one kind for the worker and attempt in `place`, whose range is ignored.

    Args:
        sink: The run.
        files: The kind of files.
        folder: Folder of the keys; "" if this kind has no folders.
        place: Worker and attempt.
        encode: Returns the file with these rows for this range.
        run_id: Id of the run.
        options: row_delay and remote_row_delay.
        continues: Whether an earlier flusher of this attempt may have written files.
        absolute: Whether the numbers of rows count all rows of the attempt. Otherwise they count the rows of
            this flusher, and the first row gets the number after the last row of earlier flushers.
    """

    def __init__(
        self,
        sink: Sink,
        files: RowFiles,
        folder: str,
        place: FileRange,
        *,
        encode: Callable[[Any, FileRange], memoryview],
        run_id: str,
        options: FlusherOptions,
        continues: bool,
        absolute: bool,
    ) -> None:
        self._sink = sink
        self._kind = files
        self._folder = folder
        self._place = place
        self._encode = encode
        self._run_id = run_id
        self._remote = isinstance(sink, PipelinedSink)
        self.delay = (options.remote_row_delay if self._remote else options.row_delay).total_seconds()
        self._has_predecessor = continues
        self._continues = continues  # whether files may exist that are not in _files
        self._files: list[FileRange] = []
        self._absolute = absolute
        self._base: int | None = None  # number of the first row of this flusher, if not absolute
        self._next = 0  # number of the row after the last one that was written
        self._largest_first_file = 1  # rows of the largest file that was not merged
        self._writing: Future[Callable[[], None]] | None = None
        self._write_at: float | None = None
        self._failing = False

    def due(self, now: float) -> bool:
        """Complete a write in progress, and return whether rows should be written. now: monotonic seconds.

        Raises:
            SinkError: The run was removed ("gone"); the caller writes the run again.
        """
        if self._write_at is None:
            self._write_at = now + self.delay
        if self._writing is not None:
            if self._writing.done():
                self._complete()
            return False
        return now >= self._write_at

    @property
    def busy(self) -> bool:
        """Whether a write is in progress."""
        return self._writing is not None

    def write(
        self,
        rows: Rows,
        now: float,
        written: Callable[[], None],
        *,
        first: int,
        last: bool = False,
    ) -> None:
        """Start to write rows, when no write is in progress. Raises as due().

        Args:
            rows: The rows; they must not change until `written` is called or a later write() starts.
            now: Monotonic seconds.
            written: Called in the flusher's thread when the rows are durable.
            first: Number of the first row. Rows that are already stored are skipped.
            last: Wait for the end of the write. If a bucket is not available, store the file in the spool.
        """
        self._write_at = now + self.delay
        self._run(lambda: self._write(rows, first, written, last), wait=last)

    def wait(self) -> None:
        """Wait for the write in progress. Raises as due()."""
        if self._writing is not None:
            self._writing.exception()  # waits
            self._complete()

    def merge_all(self) -> None:
        """Merge all files into one, after the last write. Raises as due()."""
        self.wait()
        self._run(self._merge_all, wait=True)

    def _run(self, work: Callable[[], Callable[[], None]], *, wait: bool) -> None:
        """Do `work`, in another thread if the sink is remote; it returns a function for this thread."""
        end: Future[Callable[[], None]] = Future()

        def run() -> None:
            try:
                end.set_result(work())
            except BaseException as error:
                end.set_exception(error)

        self._writing = end
        if self._remote and not wait:
            threading.Thread(target=run, name="tdcore-rows", daemon=True).start()
            return
        run()
        self._complete()

    def _complete(self) -> None:
        assert self._writing is not None
        end, self._writing = self._writing, None
        try:
            end.result()()
        except Exception as error:  # a SinkError, or a fault of tdcore: neither may stop the flusher
            if isinstance(error, SinkError) and error.kind == "gone" and not isinstance(error, SinkKeyError):
                self._files = []
                raise
            if not self._failing and not isinstance(error, SinkError):
                print_message(f"{self._place.worker}: {self._kind.what}: {type(error).__name__}: {error}")
            self._failing = True
            self._continues = True  # the file may have been stored although the sink failed
            return
        self._failing = False
        group = self._files[-_MERGE_FAN_IN:]
        levels = {_level(each, self._largest_first_file) for each in group}
        if len(group) == _MERGE_FAN_IN and len(levels) == 1 and self._can_merge(group):
            self._run(lambda: self._merge(group), wait=False)

    def _can_merge(self, group: list[FileRange]) -> bool:
        """Whether the files of a group have no gap between them, and none is still in a spool."""
        if len(group) < 2 or (isinstance(self._sink, PipelinedSink) and self._sink.waiting):
            return False
        return all(after.first == before.last + 1 for before, after in pairwise(group))

    # In the thread of the write: the functions below use the sink and what only they change.

    def _write(self, rows: Rows, first: int, written: Callable[[], None], last: bool) -> Callable[[], None]:
        files, following = self._files, self._next
        if self._continues:
            try:
                files = self._existing()
                following = files[-1].last + 1 if files else 0
            except SinkError:
                if not last or self._has_predecessor:  # else this flusher has written all files
                    raise
        if self._base is None:
            self._base = following
        begin = first if self._absolute else self._base + first
        rows = rows[max(following - begin, 0) :]
        begin = max(begin, following)
        if len(rows):
            place = replace(self._place, first=begin, last=begin + len(rows) - 1)
            key, data = self._kind.key(self._folder, place), self._encode(rows, place)
            if last and isinstance(self._sink, PipelinedSink):
                self._put_or_spool(self._sink, key, data)
            else:
                put_straight(self._sink, key, [data])
            files, following = [*files, place], place.last + 1

        def complete() -> None:
            self._files, self._next, self._continues = files, following, False
            self._largest_first_file = max(self._largest_first_file, len(rows))
            written()

        return complete

    def _put_or_spool(self, sink: PipelinedSink, key: str, data: memoryview) -> None:
        try:
            sink.start([(key, [data])]).result()
        except SinkError:
            sink.start_over()
            raise

    def _existing(self) -> list[FileRange]:
        """Files of earlier flushers of this attempt."""
        prefix = self._kind.prefix_of(self._folder, self._place.worker)
        self._sink.clean(prefix)
        parsed = [found for key in self._sink.list(prefix) if (found := self._kind.parse(key)) is not None]
        mine = {place for _, place in parsed if place.attempt == self._place.attempt}
        live = live_ranges(mine)
        delete_all(self._sink, [self._kind.key(self._folder, each) for each in mine.difference(live)])
        return live

    def _merge_all(self) -> Callable[[], None]:
        if self._failing:
            self._files = self._existing()
        return self._merge(self._files) if self._can_merge(self._files) else lambda: None

    def _merge(self, group: list[FileRange]) -> Callable[[], None]:
        from tdcore.flusher.row_tables import merged  # imports pyarrow

        keys = [self._kind.key(self._folder, each) for each in group]
        place = replace(group[0], last=group[-1].last)
        announce(self._sink, keys)
        data = merged([self._sink.get(key) for key in keys], self._kind.schema(), self._run_id)
        put_straight(self._sink, self._kind.key(self._folder, place), [data])
        delete_all(self._sink, keys)

        def replaced() -> None:
            self._files = [each for each in self._files if each not in group] + [place]

        return replaced


def _level(place: FileRange, per_file: float) -> int:
    """How often the rows of a file were merged. per_file: rows of a file that was never merged."""
    length, number = float(place.last - place.first + 1), 0
    while length > per_file * _MERGE_FAN_IN / 2:
        length, number = length / _MERGE_FAN_IN, number + 1
    return number
