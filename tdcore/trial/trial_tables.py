"""TrialTables: methods of Trial that return rows and statistics of many tensors as Arrow tables.

Threads: see Trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from tdcore.format import layout
from tdcore.format.system import SYSTEM_FILES
from tdcore.modes import ModeKeys
from tdcore.trial.compare_workers import compare_workers
from tdcore.trial.merge_blocks import merged_statistics
from tdcore.trial.overview import Condensed, Overview, condensed, overviews
from tdcore.trial.profiles import Profile, read_profiles
from tdcore.trial.reader import Selection, Steps
from tdcore.trial.row_files import read_rows
from tdcore.trial.saved_tensors import SavedSteps, first_saved_rows, saved_steps
from tdcore.trial.shard_rows import newest_shards
from tdcore.trial.statistics import needed_columns
from tdcore.trial.step_blocks import step_blocks
from tdcore.trial.step_times import joined_steps, of_mode, read_step_times
from tdcore.trial.tensor_list import ListedTensor, list_tensors
from tdcore.trial.totals import Totals, totals
from tdcore.trial.trial_run import TrialRun
from tdcore.trial.view import as_list, patterns

__all__ = ["Steps", "TrialTables"]


class TrialTables(TrialRun):
    """Methods of Trial that return tables."""

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
        """Statistics of tensors: one row per tensor, step, worker and call, ordered by step.

        Payloads are not read. Rows without statistics (absent, skipped, payload only) are in the table, with
        nulls.

        Args:
            regex_or_names: A pattern that is searched in names, or a list of exact names. None: all tensors.
            steps: A step, a range or several steps; of `mode` if it is given, else global steps.
            mode: Only this mode.
            kinds: Only these kinds: "weight", "gradient", "output", ...
            workers: Only workers of these names.
            attempt: Only this attempt.
            show_incomplete_steps: Also return steps to which a worker may still add tensors.
            columns: Names of columns. None: the columns of the index that describe the whole tensor, its
                statistics, and sum, variance, std, l1, l2 over its finite values.
            merged: Return one row per tensor, step and call for all workers together: the parts of a sharded
                tensor are joined, copies count once, and tensors that every worker has separately are
                concatenated. tdcore.trial.merge_stats has the columns and reasons.
        """
        reader = self._reader
        chosen = self._selected(
            regex_or_names, steps, mode, kinds, workers, attempt,
            tensors_only=kinds is None and (regex_or_names is None or isinstance(regex_or_names, str)),
        )  # fmt: skip
        if merged:
            return merged_statistics(reader, chosen, columns, incomplete=show_incomplete_steps)
        with reader.selected(chosen, needed_columns(columns)) as rows:
            if not show_incomplete_steps:
                rows = rows[reader.complete(rows)]
            return reader.stats(rows, columns)

    def stats_batches(
        self,
        regex_or_names: str | Iterable[str] | None = None,
        *,
        mode: ModeKeys | None = None,
        kinds: str | Iterable[str] | None = None,
        workers: str | Iterable[str] | None = None,
        attempt: int | None = None,
        show_incomplete_steps: bool = True,
        columns: Sequence[str] | None = None,
        batch_rows: int = 1 << 16,
    ) -> Iterator[pa.Table]:
        """The rows of stats() in several tables, for runs whose statistics do not fit into memory.

        A table has all rows of one or more global steps; the tables are ordered by step. The run is not read
        again between two tables. The arguments are those of stats().

        Args:
            batch_rows: Approximate number of rows of a table. A step with more rows is one table.
        """
        reader = self._reader
        chosen = self._selected(
            regex_or_names, None, mode, kinds, workers, attempt,
            tensors_only=kinds is None and (regex_or_names is None or isinstance(regex_or_names, str)),
        )  # fmt: skip
        for rows in step_blocks(reader, chosen, chosen.stretches, batch_rows):
            if not show_incomplete_steps:
                rows = rows[reader.complete(rows)]
            if len(rows):
                yield reader.stats(rows, columns)

    def overviews(
        self, names: Iterable[str], statistic: str, *, steps: int | None = None, mode: ModeKeys | None = None
    ) -> dict[str, Overview]:
        """For each tensor its last merged row and the history of one statistic. See Overview.

        Args:
            names: Names of tensors; tensors without rows are not in the result.
            statistic: A key of tdcore.trial.overview.HISTORY_STATISTICS, such as "abs_mean".
            steps: Only this step; of `mode` if it is given, else a global step.
            mode: Only this mode.
        """
        self._reader.auto_refresh()
        return overviews(self._reader, names, steps, mode, statistic)

    def condensed(
        self,
        names: Iterable[str],
        statistic: str,
        width: int,
        *,
        steps: int | None = None,
        mode: ModeKeys | None = None,
    ) -> dict[str, Condensed]:
        """For each tensor its last merged row, and the history of one statistic in at most `width` means.

        A share of a history without a finite value is None. See overviews() for the other arguments.
        """
        self._reader.auto_refresh()
        return condensed(self._reader, names, steps, mode, statistic, width)

    def totals(self) -> Totals:
        """Number of rows, bytes of saved values, and steps of each mode, of all rows that the trial shows."""
        self._reader.auto_refresh()
        return totals(self._reader)

    def list_tensors(self, regex: str | None = None) -> list[ListedTensor]:
        """All tensors that are shown, each with its steps, types and bytes, sorted by name and kind.

        regex: A pattern that is searched in names; None: all tensors, also saved reductions.
        """
        return list_tensors(self._reader, self._selected(regex, None, None, None, None, None))

    def combinations(self, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """The combinations of texts in some columns that occur in rows, in the order of their first rows.

        The rows of large files are not read. Rows without a value count.

        Args:
            columns: Of name, kind, status, mode and worker.
        """
        self._reader.auto_refresh()
        texts = [self._reader.index.texts(name) for name in columns]
        return [
            tuple(texts[at][code] for at, code in enumerate(codes))
            for codes in self._reader.combinations(columns)
        ]

    def first_saved_rows(self, columns: Sequence[str]) -> pa.Table:
        """The first row of each tensor with a value, else its first row, as stored: one row per tensor.

        Saved reductions of other tensors are left out. columns: names of columns of the index.
        """
        self._reader.auto_refresh()
        return first_saved_rows(self._reader, columns)

    def saved_steps(self) -> dict[str, SavedSteps]:
        """Tensor -> number of its saved steps in all modes, and whether values were saved."""
        self._reader.auto_refresh()
        return saved_steps(self._reader)

    def names_and_kinds(self, regex_or_name: str | None = None) -> list[tuple[str, str]]:
        """The combinations of name and kind of all rows, also of rows without a value.

        regex_or_name: A pattern that is searched in names; None: all names.
        """
        found = [(name, kind) for name, kind in self.combinations(("name", "kind"))]
        if regex_or_name is None:
            return found
        (test,) = patterns(regex_or_name)
        return [each for each in found if test.search(each[0])]

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
        """Compare workers, to find the worker whose values differ from the other workers' values.

        Args:
            regex_or_names: Names, as in stats(); see stats() for all filters.
            column: A numeric column of stats().
            across_shards: Also compare different parts of a sharded tensor with each other. Otherwise only
                workers with the same part are compared.

        Returns:
            One row per tensor, step, call and worker. Columns: value; median of the compared workers;
            deviation from the median in standard deviations, estimated from the median absolute deviation
            (null if there is one worker only); order, 1 for the largest deviation; alike, the number of
            compared workers.
        """
        chosen = self._selected(regex_or_names, steps, mode, kinds, None, attempt, tensors_only=True)
        rows = self._reader.select(chosen)
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
        """Rows of the index as they are stored, one per part of a tensor.

        Only `step` is translated: it is the global step of the first worker by rank, see steps(). For the
        filters see stats(). columns: names of columns; None: all columns of the index.
        """
        index = self._reader.index
        chosen = self._selected(regex_or_names, steps, mode, kinds, workers, attempt)
        names = layout.index_schema().names if columns is None else columns
        with index.found(chosen.tests, chosen.stretches, names) as rows:
            return index.table(self._reader.meant(rows, chosen), names)

    def newest_shards(
        self, regex_or_names: str | Iterable[str] | None = None, *, columns: Sequence[str]
    ) -> pa.Table:
        """For each tensor and worker its last row that is a shard of a larger tensor, as stored, see rows().

        Tensors without shards are left out.
        """
        chosen = self._selected(regex_or_names, None, None, None, None, None)
        return self._reader.index.table(newest_shards(self._reader, chosen), columns)

    def system(self, *, workers: str | Iterable[str] | None = None, attempt: int | None = None) -> pa.Table:
        """Samples of the machine and of the trainer's processes, sorted by time.

        Each worker has samples of its trainer's processes and its flusher. One worker per host also has those
        of the machine and its GPUs; the columns are null in the rows of the others. docs/system.md describes
        the columns.

        Args:
            workers: Only workers of these names.
            attempt: Only this attempt. None: the attempt of create_trial(), or all attempts.

        Raises:
            InvalidAttempt: The run has no such attempt.
            RunCorrupt: A file cannot be read.
        """
        attempts = self._attempts(attempt)
        return read_rows(SYSTEM_FILES, self._reader.sink, self.run_id, attempts, as_list(workers))

    def steps_time(
        self,
        *,
        mode: ModeKeys | None = None,
        workers: str | Iterable[str] | None = None,
        attempt: int | None = None,
        intervals: bool = False,
    ) -> pa.Table:
        """Times of all steps, saved or not: one row per step and worker, sorted by time.

        `duration_ns` is the sum of the phases `data_ns`, `forward_ns`, `loss_ns`, `backward_ns`,
        `optimizer_ns`, `compute_ns`, `checkpoint_ns`, `compile_ns`, `gc_ns` and `rest_ns`. docs/step-times.md
        describes the columns. The number `step` is that of the worker.

        Args:
            mode: Only steps of this mode.
            workers: Only workers of these names.
            attempt: Only this attempt. None: the attempt of create_trial(), or all attempts.
            intervals: Return the rows as they were measured, with their numbers in the column `row`. A step
                that another step interrupts has several rows; a missing number is a row that was lost.

        Raises:
            InvalidAttempt: The run has no such attempt.
            RunCorrupt: A file cannot be read.
        """
        attempts, names = self._attempts(attempt), as_list(workers)
        rows = of_mode(read_step_times(self._reader.sink, self.run_id, attempts, names), mode)
        return rows if intervals else joined_steps(rows)

    def profiles(
        self, *, workers: str | Iterable[str] | None = None, attempt: int | None = None
    ) -> list[Profile]:
        """Profiles of the training: operators and Python functions of some steps. docs/profile.md.

        Args:
            workers: Only workers of these names.
            attempt: Only this attempt. None: the attempt of create_trial(), or all attempts.

        Returns:
            Profiles that were stored so far, by attempt, number and worker.

        Raises:
            InvalidAttempt: The run has no such attempt.
            RunCorrupt: A document cannot be read.
        """
        return read_profiles(self._reader.sink, self.run_id, self._attempts(attempt), as_list(workers))

    def _attempts(self, attempt: int | None) -> list[int]:
        """This attempt, the attempt of create_trial(), or all attempts."""
        self._reader.auto_refresh()
        chosen = self._reader.attempt if attempt is None else attempt
        if chosen is None:
            return self._reader.progress.attempts
        self._reader.check_attempt(chosen)
        return [chosen]

    def _selected(
        self,
        regex_or_names: str | Iterable[str] | None,
        steps: Steps | None,
        mode: ModeKeys | None,
        kinds: str | Iterable[str] | None,
        workers: str | Iterable[str] | None,
        attempt: int | None,
        *,
        tensors_only: bool = False,
    ) -> Selection:
        self._reader.auto_refresh()
        names = self._name_codes(regex_or_names)
        return self._reader.selection(
            names, steps, mode, as_list(kinds), as_list(workers), attempt, tensors_only=tensors_only
        )

    def _name_codes(self, regex_or_names: str | Iterable[str] | None) -> list[int] | None:
        """The codes of these names; None for all names."""
        dictionary = self._reader.index.dictionaries["name"]
        if isinstance(regex_or_names, str):
            (test,) = patterns(regex_or_names)
            return [code for code, text in enumerate(dictionary.texts) if test.search(text)]
        return None if regex_or_names is None else [dictionary.code(text) for text in regex_or_names]
