"""TrialFollow: methods of Trial for programs that follow a run. Threads: see Trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tdcore.trial.row_columns import Rows
from tdcore.trial.step_blocks import whole_steps
from tdcore.trial.trial_run import TrialRun

__all__ = ["TrialFollow"]


class TrialFollow(TrialRun):
    """Methods of Trial that return each row once, when its step is complete."""

    def next_complete(self) -> pa.Table:
        """Statistics of the steps that became complete since the last call. Every row is returned once.

        This method is for programs that follow a run. The columns are the same as in stats(). The number of a
        complete step (column `step`, see Trial.steps) is final, with two exceptions: a worker that counted as
        dead continues, or the first worker begins a mode that only other workers had so far. If a tensor is
        saved again at a step that was returned before, the new row is returned too.
        """
        return self._reader.stats(self._reader.tensors_only(self._newly_complete()))

    def next_complete_batches(
        self, columns: Sequence[str] | None = None, *, batch_rows: int = 1 << 16
    ) -> Iterator[pa.Table]:
        """The rows of next_complete() in several tables of whole steps, in order of steps.

        Read all tables: the rows of the others are not returned again.

        Args:
            columns: Names of columns; see stats(). "ticket" is the number of the record of a row.
            batch_rows: Approximate number of rows of a table. A step with more rows is one table.
        """
        rows = self._newly_complete()
        steps = self._reader.index.column("step")[rows]
        rows, steps = rows[np.argsort(steps, kind="stable")], np.sort(steps)
        for block in whole_steps(steps, np.ones(len(rows), dtype=np.int64), batch_rows):
            yield self._reader.stats(self._reader.tensors_only(np.sort(rows[block])), columns)

    def complete_tickets(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """Ranges of tickets, by worker and attempt, that have no rows for next_complete() to return."""
        index, view = self._reader.index, self._reader.view
        pending = np.flatnonzero(view.visible[: len(self._shown)] & ~self._shown)
        pending = np.append(pending, np.arange(len(self._shown), len(index)))
        workers, attempts, tickets = (index.column(name)[pending] for name in ("worker", "attempt", "ticket"))
        found = {}
        for worker, attempt in index.homes:
            mine = (workers == index.dictionaries["worker"].code(worker)) & (attempts == attempt)
            end = int(tickets[mine].min(initial=index.end(worker, attempt)))
            ranges = index.tickets(worker, attempt)
            found[worker, attempt] = [(first, min(last, end - 1)) for first, last in ranges if first < end]
        return found

    def _newly_complete(self) -> Rows:
        """The rows of the steps that became complete since the last call."""
        reader = self._reader
        reader.auto_refresh()
        shown = np.zeros(len(reader.index), dtype=np.bool_)
        shown[: len(self._shown)] = self._shown
        rows = np.flatnonzero(reader.view.visible & ~shown)
        rows = rows[reader.complete(rows)]
        shown[rows] = True
        self._shown = shown
        return rows
