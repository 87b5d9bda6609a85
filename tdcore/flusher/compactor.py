"""When to merge, and when to delete what was merged. merge.py says how.

One thread: the flusher's; what is done in a sink that is far away has another.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeAlias

from tdcore.flusher.ledger import IndexEntry, Ledger
from tdcore.flusher.merge import MergeResult, final_groups, merge_files, next_group, small_files
from tdcore.flusher.messages import print_message
from tdcore.flusher.options import FlusherOptions
from tdcore.sinks.base import PipelinedSink, Sink, SinkError, SinkKeyError, delete_all

__all__ = ["Compactor"]

Booking: TypeAlias = Callable[[], None]
Work: TypeAlias = Callable[[], Booking]

_AT_ONCE = 32  # deletions between two looks at the ring
_PAUSE_SECONDS = 30.0  # after a merge that the sink refused
_MANY_TIMES = 2  # so many times merge_fan_in small files, or doomed pairs, are more than should wait


class Compactor:
    """Merges the files of `ledger`, a group at a time."""

    def __init__(
        self, sink: Sink, ledger: Ledger, options: FlusherOptions, clock: Callable[[], float]
    ) -> None:
        self._sink = sink
        self._ledger = ledger
        self._options = options
        self._clock = clock
        self._doomed: deque[tuple[float, str]] = deque()  # when to delete, key
        self._left_alone: set[int] = set()  # first tickets of files that could not be merged
        self._not_before = 0.0
        self._running: Future[Booking] | None = None  # the work that is under way
        self._nothing_since = -1  # the ledger's changes when there was last nothing to merge
        self._counted_at = -1  # the ledger's changes when small files were last counted
        self._small = 0  # as counted then

    def step(self, now: float) -> bool:
        """Do one piece of work, or look after the one that is under way; False when there is nothing to do.

        For a sink that is far away it is done beside the flusher, which has a ring to look after. A sink that
        refuses only delays it. Raises SinkError when the run was removed.
        """
        if self._running is None:
            work = self._next(now)
            if work is None:
                return False
            self._running = self._begin(work)
        return self._running.done() and self._book(now)

    def overdue(self, now: float) -> bool:
        """Whether so many files wait to be merged or deleted that step() is due at once."""
        many = _MANY_TIMES * self._options.merge_fan_in
        if self._running is not None:
            return self._running.done()
        if now < self._not_before:
            return False
        if len(self._doomed) > 2 * many and self._doomed[2 * many][0] <= now:
            return True
        return len(self._ledger.entries) > many and self._overdue_merge(many)

    def finish(self) -> None:
        """The last merges and all deletions. Raises SinkError.

        Merges end when `final_merge` is over, but not while so many files are left that a run should not end
        with them: then when `catch_up` is over.
        """
        if self._running is not None:
            wait([self._running])
            self._book(self._clock())
        began, many = self._clock(), _MANY_TIMES * self._options.merge_fan_in
        for group in final_groups(self._candidates(), self._options):
            left = len(self._candidates()) > many
            limit = (
                max(self._options.final_merge, self._options.catch_up) if left else self._options.final_merge
            )
            if self._clock() - began < limit.total_seconds():
                self._merge(group)()
        self._delete([key for _, key in self._doomed])()

    def forget(self) -> None:
        """The run's folder was removed."""
        self._doomed.clear()

    def _next(self, now: float) -> Work | None:
        """The most useful thing to do now."""
        if now < self._not_before:
            return None
        due = [key for due, key in self._doomed if due <= now][:_AT_ONCE]
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

    def _begin(self, work: Work) -> Future[Booking]:
        end: Future[Booking] = Future()

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

    def _book(self, now: float) -> bool:
        """The work that was under way has ended."""
        assert self._running is not None
        end, self._running = self._running, None
        try:
            end.result()()
        except SinkError as error:
            if error.kind == "gone":
                raise  # the whole run was removed: the flusher has to know
            self._not_before = now + _PAUSE_SECONDS
            return False
        return True

    # Work: it may run on another thread, so it touches nothing but the sink; what it returns is called on the
    # flusher's.

    def _delete(self, keys: Sequence[str]) -> Booking:
        """The first ones of the doomed."""
        delete_all(self._sink, keys)

        def book() -> None:
            for _ in keys:
                self._doomed.popleft()

        return book

    def _merge(self, group: Sequence[IndexEntry]) -> Booking:
        try:
            merge = merge_files(self._sink, group, self._options)
        except SinkError as error:
            if not isinstance(error, SinkKeyError):
                raise
            return partial(self._leave_alone, group, error)  # one of the files was removed by somebody
        except Exception as error:
            return partial(self._leave_alone, group, error)
        return partial(self._enter, group, merge)

    # Booking

    def _enter(self, group: Sequence[IndexEntry], merge: MergeResult) -> None:
        self._ledger.replace(group, merge.entry)
        due = self._clock() + self._options.grace.total_seconds()
        self._doomed.extend((due, key) for key in merge.unneeded)

    def _candidates(self) -> Sequence[IndexEntry]:
        if not self._left_alone:
            return self._ledger.entries
        return [entry for entry in self._ledger.entries if entry.range.first not in self._left_alone]

    def _leave_alone(self, group: Sequence[IndexEntry], error: Exception) -> None:
        if not self._left_alone:
            print_message(f"{self._ledger.worker}: some files stay unmerged: {type(error).__name__}: {error}")
        self._left_alone.update(entry.range.first for entry in group)
