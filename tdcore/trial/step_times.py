"""The times of the steps of a run. Threads: see Trial; no state."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tdcore.errors import RunCorrupt
from tdcore.format.step_times import COUNTS, PHASES, STEP_TIME_FILES, step_time_schema
from tdcore.sinks.base import Sink
from tdcore.trial.row_files import read_rows

__all__ = ["joined_steps", "read_step_times"]

_STEP = ["attempt", "worker", "mode", "mode_step", "step"]
_SUMS = ["duration_ns", *(f"{phase}_ns" for phase in PHASES), "capture_ns", *COUNTS]


def read_step_times(
    sink: Sink,
    run_id: str,
    attempts: Sequence[int],
    workers: Sequence[str] | None,
    mode: str | None = None,
) -> pa.Table:
    """Times of steps of these attempts and workers (None: all workers), as they were measured; see read_rows.

    mode: Only steps of this mode.
    """
    table = read_rows(STEP_TIME_FILES, sink, run_id, attempts, workers)
    if mode is not None:
        table = table.filter(pc.equal(table["mode"].cast(pa.string()), mode))
    return table


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
