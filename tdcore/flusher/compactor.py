"""Compactor: schedule of the merges of index files and of the deletion of merged files. merge.py merges.

Threads: the flusher's thread. With a remote sink, merges and deletions run in another thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeAlias

from tdcore.flusher.ledger import IndexEntry, Ledger
from tdcore.flusher.merge import MergeResult, final_groups, large_groups, merge_files, next_group, small_files
from tdcore.flusher.messages import print_message
from tdcore.flusher.options import FlusherOptions
from tdcore.sinks.base import PipelinedSink, Sink, SinkError, SinkKeyError, delete_all

__all__ = ["Compactor"]

Completion: TypeAlias = Callable[[], None]
Work: TypeAlias = Callable[[], Completion]

_DELETIONS_AT_ONCE = 32  # maximum between two polls of the ring
_PAUSE_SECONDS = 30.0  # after a merge that failed in the sink
_OVERDUE_FACTOR = 2  # merges are overdue at this multiple of merge_fan_in


class Compactor:
    """Merges and deletions of the files of `ledger`, one group at a time."""

    def __init__(
        self, sink: Sink, ledger: Ledger, options: FlusherOptions, clock: Callable[[], float]
    ) -> None:
        self._sink = sink
        self._ledger = ledger
        self._options = options
        self._clock = clock
        self._to_delete: deque[tuple[float, str]] = deque()  # due time, key
        self._unmergeable: set[int] = set()  # first tickets of files that could not be merged
        self._not_before = 0.0
        self._running: Future[Completion] | None = None  # the merge or deletion in progress
        self._nothing_since = -1  # ledger.changes when there was nothing to merge
        self._counted_at = -1  # ledger.changes when small files were counted
        self._small = 0  # number of small files at that time

    def step(self, now: float) -> bool:
        """Start a merge or deletion, or complete the current one. Return False if there is nothing to do.

        With a remote sink the work runs in another thread, so that the flusher can read its ring. A failing
        sink only delays the work. Raises SinkError if the run was removed.
        """
        if self._running is None:
            work = self._next(now)
            if work is None:
                return False
            self._running = self._begin(work)
        return self._running.done() and self._complete(now)

    def overdue(self, now: float) -> bool:
        """Whether so many files must be merged or deleted that step() must not be delayed."""
        many = _OVERDUE_FACTOR * self._options.merge_fan_in
        if self._running is not None:
            return self._running.done()
        if now < self._not_before:
            return False
        if len(self._to_delete) > 2 * many and self._to_delete[2 * many][0] <= now:
            return True
        return len(self._ledger.entries) > many and self._overdue_merge(many)

    def finish(self) -> None:
        """Do the last merges and all deletions. Raises SinkError.

        Merges stop after the time `final_merge`, or after `catch_up` if too many small files are left.
        """
        if self._running is not None:
            wait([self._running])
            self._complete(self._clock())
        began, many = self._clock(), _OVERDUE_FACTOR * self._options.merge_fan_in
        for group in final_groups(self._candidates(), self._options):
            left = len(self._candidates()) > many
            limit = (
                max(self._options.final_merge, self._options.catch_up) if left else self._options.final_merge
            )
            if self._clock() - began < limit.total_seconds():
                self._merge(group)()
        self._finish_large(began + self._options.final_merge.total_seconds())
        self._delete([key for _, key in self._to_delete])()

    def _finish_large(self, deadline: float) -> None:
        """Merge the index files to a few large ones, as far as the time is sufficient."""
        while True:
            left = deadline - self._clock()
            groups = large_groups(self._candidates(), self._options, left) if left > 0 else []
            if not groups:
                return
            self._merge(groups[0], segments=False)()

    def forget(self) -> None:
        """Forget the files to delete, after the run's folder was removed."""
        self._to_delete.clear()

    def _next(self, now: float) -> Work | None:
        """The next merge or deletion; None if there is nothing to do."""
        if now < self._not_before:
            return None
        due = [key for due, key in self._to_delete if due <= now][:_DELETIONS_AT_ONCE]
        if due:
            return partial(self._delete, due)
        if self._nothing_since == self._ledger.changes:
            return None
        group = next_group(self._candidates(), self._options)
        if not group:
            self._nothing_since = self._ledger.changes
            return None
        return partial(self._merge, group)

    def _overdue_merge(self, many: int) -> bool:
        if self._nothing_since == self._ledger.changes:
            return False
        if self._counted_at != self._ledger.changes:
            self._counted_at = self._ledger.changes
            self._small = small_files(self._candidates(), self._options)
        return self._small > many

    def _begin(self, work: Work) -> Future[Completion]:
        end: Future[Completion] = Future()

        def run() -> None:
            try:
                end.set_result(work())
            except BaseException as error:
                end.set_exception(error)

        if isinstance(self._sink, PipelinedSink):
            threading.Thread(target=run, name="tdcore-merge", daemon=True).start()
        else:
            run()
        return end

    def _complete(self, now: float) -> bool:
        """Complete the work that has ended."""
        assert self._running is not None
        end, self._running = self._running, None
        try:
            end.result()()
        except SinkError as error:
            if error.kind == "gone":
                raise  # the run was removed; the flusher writes its small files again
            self._not_before = now + _PAUSE_SECONDS
            return False
        return True

    # Work may run in another thread, so it uses only the sink. The returned function is called in the
    # flusher's thread.

    def _delete(self, keys: Sequence[str]) -> Completion:
        """Delete the oldest files."""
        delete_all(self._sink, keys)

        def completed() -> None:
            for _ in keys:
                self._to_delete.popleft()

        return completed

    def _merge(self, group: Sequence[IndexEntry], *, segments: bool = True) -> Completion:
        try:
            merge = merge_files(self._sink, group, self._options, segments=segments)
        except SinkError as error:
            if not isinstance(error, SinkKeyError):
                raise
            return partial(self._set_unmergeable, group, error)  # another program removed one of the files
        except Exception as error:
            return partial(self._set_unmergeable, group, error)
        return partial(self._record, group, merge)

    # Completion

    def _record(self, group: Sequence[IndexEntry], merge: MergeResult) -> None:
        self._ledger.replace(group, merge.entry)
        due = self._clock() + self._options.grace.total_seconds()
        self._to_delete.extend((due, key) for key in merge.unneeded)

    def _candidates(self) -> Sequence[IndexEntry]:
        if not self._unmergeable:
            return self._ledger.entries
        return [entry for entry in self._ledger.entries if entry.range.first not in self._unmergeable]

    def _set_unmergeable(self, group: Sequence[IndexEntry], error: Exception) -> None:
        if not self._unmergeable:
            print_message(
                f"{self._ledger.worker}: some files were not merged: {type(error).__name__}: {error}"
            )
        self._unmergeable.update(entry.range.first for entry in group)
