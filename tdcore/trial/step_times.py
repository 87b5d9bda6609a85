"""The times of the steps of a run. Threads: see Trial; no state."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tdcore.errors import RunCorrupt
from tdcore.format.step_times import COUNTS, PHASES, STEP_TIME_FILES, step_time_schema
from tdcore.modes import ModeKeys
from tdcore.sinks.base import Sink
from tdcore.trial.row_files import read_rows

__all__ = ["joined_steps", "of_mode", "read_step_times"]

_STEP = ["attempt", "worker", "mode", "mode_step", "step"]
_SUMS = ["duration_ns", *(f"{phase}_ns" for phase in PHASES), "capture_ns", *COUNTS]


def read_step_times(
    sink: Sink, run_id: str, attempts: Sequence[int], workers: Sequence[str] | None
) -> pa.Table:
    """Times of steps, as they were measured; see read_rows for the arguments and errors."""
    return read_rows(STEP_TIME_FILES, sink, run_id, attempts, workers)


def of_mode(table: pa.Table, mode: ModeKeys | None) -> pa.Table:
    """The rows of this mode; all rows for None and GLOBAL."""
    if mode in (None, ModeKeys.GLOBAL):
        return table
    return table.filter(pc.equal(table["mode"].cast(pa.string()), mode.name))


def joined_steps(table: pa.Table) -> pa.Table:
    """One row per step, without the column `row`: times and counts are added up. Sorted by time.

    Raises:
        RunCorrupt: The sum of counts is too large for its column.
    """
    grouped = table.group_by(_STEP, use_threads=False).aggregate(
        [
            ("time_ns", "min"),
            *((name, "sum") for name in _SUMS),
            ("gpu_ns", "sum", pc.ScalarAggregateOptions(skip_nulls=False)),
        ]
    )
    names = [name.removesuffix("_sum").removesuffix("_min") for name in grouped.column_names]
    schema = pa.schema([field for field in step_time_schema() if field.name != STEP_TIME_FILES.number])
    try:
        joined = grouped.rename_columns(names).select(schema.names).cast(schema)
    except pa.ArrowInvalid as error:
        raise RunCorrupt(
            f"the counts of a step in {STEP_TIME_FILES.prefix} are impossible: {error}"
        ) from error
    return joined.sort_by([("time_ns", "ascending"), ("step", "ascending")])
