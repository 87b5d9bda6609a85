"""When to merge, and when to delete what was merged. merge.py says how. One thread: the flusher's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tdcore.flusher.health import say
from tdcore.flusher.ledger import IndexEntry, Ledger
from tdcore.flusher.merge import final_groups, merge_files, next_group
from tdcore.flusher.options import FlusherOptions
from tdcore.sinks.base import Sink, SinkError, SinkKeyError, delete_all

__all__ = ["Compactor"]

_AT_ONCE = 32  # deletions between two looks at the ring
_PAUSE_SECONDS = 30.0  # after a merge that the sink refused


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
        self._nothing_since = -1  # the ledger's changes when there was last nothing to merge

    def step(self, now: float) -> bool:
        """Do one piece of work; False when there is none. A sink that refuses a merge only delays it.

        Raises SinkError when the run was removed.
        """
        if now < self._not_before:
            return False
        try:
            if self._doomed and self._doomed[0][0] <= now:
                self._delete([key for due, key in self._doomed if due <= now][:_AT_ONCE])
                return True
            if self._nothing_since == self._ledger.changes:
                return False
            group = next_group(self._candidates(), self._options)
            if not group:
                self._nothing_since = self._ledger.changes
            return bool(group) and self._merge(group)
        except SinkError as error:
            if error.kind == "gone":
                raise  # the whole run was removed: the flusher has to know
            self._not_before = now + _PAUSE_SECONDS
            return False

    def finish(self) -> None:
        """The last merges, as far as time allows, and all deletions. Raises SinkError."""
        deadline = self._clock() + self._options.final_merge.total_seconds()
        for group in final_groups(self._candidates(), self._options):
            if self._clock() < deadline:
                self._merge(group)
        self._delete([key for _, key in self._doomed])

    def forget(self) -> None:
        """The run's folder was removed."""
        self._doomed.clear()

    def _delete(self, keys: Sequence[str]) -> None:
        """The first ones of the doomed."""
        delete_all(self._sink, keys)
        for _ in keys:
            self._doomed.popleft()

    def _candidates(self) -> Sequence[IndexEntry]:
        if not self._left_alone:
            return self._ledger.entries
        return [entry for entry in self._ledger.entries if entry.range.first not in self._left_alone]

    def _merge(self, group: Sequence[IndexEntry]) -> bool:
        try:
            merge = merge_files(self._sink, group, self._options)
        except SinkError as error:
            if not isinstance(error, SinkKeyError):
                raise
            self._leave_alone(group, error)  # one of the files was removed by somebody
            return False
        except Exception as error:
            self._leave_alone(group, error)
            return False
        self._ledger.replace(group, merge.entry)
        due = self._clock() + self._options.grace.total_seconds()
        self._doomed.extend((due, key) for key in merge.unneeded)
        return True

    def _leave_alone(self, group: Sequence[IndexEntry], error: Exception) -> None:
        if not self._left_alone:
            say(f"{self._ledger.worker}: some files stay unmerged: {type(error).__name__}: {error}")
        self._left_alone.update(entry.range.first for entry in group)
