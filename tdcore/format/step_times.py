"""Times of steps on disk: names and columns of the files below time/.

    time/<worker>/<attempt>-<first>-<last>.parquet

A row is a time interval of one step, saved or not. The intervals of a worker follow one another without a
gap. A step can have several rows, for example if an evaluation interrupts it; readers add them up. Pure
functions, any thread. step_time_schema() imports pyarrow.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tdcore.format.row_files import TIME_LIMIT, RowFiles
from tdcore.modes import ModeKeys

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COUNTS", "DURATION_LIMIT", "PHASES", "STEP_TIME_FILES", "step_time_schema"]

# The phases of a step, in the order of csrc/ring/step_times.hpp. At each moment a step is in one phase.
PHASES = (
    "rest",
    "data",
    "forward",
    "loss",
    "backward",
    "optimizer",
    "compute",
    "checkpoint",
    "compile",
    "gc",
)
COUNTS = ("data_waits", "checkpoints", "compiles")  # how often a step entered these phases
DURATION_LIMIT = 1 << 56  # above the nanoseconds of all durations, and of the sum of a column in one file
_DURATIONS = ("duration_ns", *(f"{phase}_ns" for phase in PHASES), "capture_ns", "gpu_ns")


@cache
def step_time_schema() -> pa.Schema:
    """Columns of a file, in order. docs/format.md describes them."""
    import pyarrow as pa

    word, nanoseconds = pa.dictionary(pa.int32(), pa.string()), pa.int64()
    required = [
        ("attempt", pa.int32()),
        ("worker", word),
        ("row", pa.int64()),
        ("mode", word),
        ("mode_step", pa.int64()),
        ("step", pa.int64()),
        ("time_ns", nanoseconds),
        ("duration_ns", nanoseconds),
        *((f"{phase}_ns", nanoseconds) for phase in PHASES),
        ("capture_ns", nanoseconds),
        *((count, pa.int32()) for count in COUNTS),
    ]
    optional = [("gpu_ns", nanoseconds)]
    return pa.schema(
        [pa.field(name, kind, nullable=False) for name, kind in required]
        + [pa.field(name, kind) for name, kind in optional]
    )


STEP_TIME_FILES = RowFiles(
    what="times of steps",
    prefix="time/",
    has_folders=False,
    number="row",
    schema=step_time_schema,
    limits={
        "time_ns": TIME_LIMIT,
        **dict.fromkeys(["mode_step", "step"], 1 << 63),
        **dict.fromkeys(_DURATIONS, DURATION_LIMIT),
        **dict.fromkeys(COUNTS, 1 << 31),
    },
    sums=(*_DURATIONS, *COUNTS),
    names={"mode": frozenset(mode.name for mode in ModeKeys)},
)
