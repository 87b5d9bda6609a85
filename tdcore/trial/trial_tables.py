"""TrialTables: rows and statistics of many tensors at once, as Arrow tables.

Threads: as Trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tdcore.modes import ModeKeys
from tdcore.trial.compare_workers import compare_workers
from tdcore.trial.trial_run import TrialRun
from tdcore.trial.view import as_list, patterns

__all__ = ["Steps", "TrialTables"]

Steps: TypeAlias = "int | range | Iterable[int]"


class TrialTables(TrialRun):
    """A part of Trial."""

    def stats(
        self,
        regex_or_names: str | Iterable[str] | None = None,
        *,
        steps: Steps | None = None,
        mode: ModeKeys | None = None,
        kinds: str | Iterable[str] | None = None,
        workers: str | Iterable[str] | None = None,
        attempt: int | None = None,
        show_incomplete_steps: bool = True,
        columns: Sequence[str] | None = None,
        merged: bool = False,
    ) -> pa.Table:
        """Statistics: one row per tensor, step, worker and call, ordered by step. Payloads are not touched.

        merged: one row per tensor, step and call instead, for what all workers have of it together: the
        parts of a sharded tensor make the whole, copies count once, and what every worker has for itself is
        laid end to end. See tdcore.trial.merge_stats for its columns and reasons.

        regex_or_names: a pattern, searched in names, or a list of exact names. steps: a step, a range or
        several; of the mode when one is given, else global. kinds: "weight", "gradient", "output", ...
        workers: names. attempt: that one alone. Columns: those of the index that describe the whole tensor,
        its statistics, and sum, variance, std, l1, l2 over its finite values. Rows without statistics
        (absent, skipped, payload only) are there, with nulls.
        """
        rows = self._selected(regex_or_names, steps, mode, kinds, workers, attempt)
        if kinds is None and (regex_or_names is None or isinstance(regex_or_names, str)):
            rows = self._reader.tensors_only(rows)
        if not show_incomplete_steps:
            rows = rows[self._reader.complete(rows)]
        return self._reader.merged(rows, columns) if merged else self._reader.stats(rows, columns)

    def compare_workers(
        self,
        regex_or_names: str | Iterable[str] | None = None,
        *,
        column: str = "l2",
        steps: Steps | None = None,
        mode: ModeKeys | None = None,
        kinds: str | Iterable[str] | None = None,
        attempt: int | None = None,
        across_shards: bool = False,
    ) -> pa.Table:
        """Workers side by side: which one has values unlike the others'. One row per tensor, step, call and
        worker.

        column: of stats(), a number. Filters as in stats(). across_shards: compares different parts of a
        sharded tensor with each other, too; else only workers with the same part. Columns: value; median of
        the workers compared; deviation from it in standard deviations, as estimated from the median absolute
        deviation (null where one worker is alone); order, 1 for the largest deviation; alike, how many
        workers are compared.
        """
        rows = self._reader.tensors_only(self._selected(regex_or_names, steps, mode, kinds, None, attempt))
        return compare_workers(self._reader.stats(rows), column, across_shards=across_shards)

    def rows(
        self,
        regex_or_names: str | Iterable[str] | None = None,
        *,
        steps: Steps | None = None,
        mode: ModeKeys | None = None,
        kinds: str | Iterable[str] | None = None,
        workers: str | Iterable[str] | None = None,
        attempt: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Rows of the index as they are stored, one per part, with its columns or those named.

        Except for `step`: the global step of the first worker by rank, see steps(). Filters as in stats().
        """
        rows = self._selected(regex_or_names, steps, mode, kinds, workers, attempt)
        return self._reader.index.table(rows, columns)

    def next_complete(self) -> pa.Table:
        """As stats(), for the rows of steps that became complete since the last call: every row comes once.

        For programs that follow a run. A step has its final number (column `step`, see Trial.steps) when it
        is complete: numbers that were returned stay. There are two exceptions: a worker that was taken for
        dead comes back, and the first worker begins a mode that only others had until then. Of a name that is
        saved again at a step after that step was returned, the new row comes too.
        """
        reader = self._reader
        reader.auto_refresh()
        shown = np.zeros(len(reader.index), dtype=np.bool_)
        shown[: len(self._shown)] = self._shown
        rows = np.flatnonzero(reader.view.visible & ~shown)
        rows = rows[reader.complete(rows)]
        shown[rows] = True
        self._shown = shown
        return reader.stats(reader.tensors_only(rows))

    def _selected(
        self,
        regex_or_names: str | Iterable[str] | None,
        steps: Steps | None,
        mode: ModeKeys | None,
        kinds: str | Iterable[str] | None,
        workers: str | Iterable[str] | None,
        attempt: int | None,
    ) -> Any:
        self._reader.auto_refresh()
        dictionary = self._reader.index.dictionaries["name"]
        names: list[int] | None = None
        if isinstance(regex_or_names, str):
            (test,) = patterns(regex_or_names)
            names = [code for code, text in enumerate(dictionary.texts) if test.search(text)]
        elif regex_or_names is not None:
            names = [dictionary.code(text) for text in regex_or_names]
        return self._reader.select(names, steps, mode, as_list(kinds), as_list(workers), attempt)
