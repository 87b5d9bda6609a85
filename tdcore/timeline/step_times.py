"""Times of steps in a timeline: a slice for each step, and a counter with its phases.

The order of the phases within a step is not recorded, so a step has no slices for them. Threads: any; no
state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tdcore.format.step_times import PHASES
from tdcore.timeline.events import Event, counter, time_slice

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["STEPS_TRACK", "step_time_events"]

STEPS_TRACK = 50


def step_time_events(times: pa.Table, workers: dict[str, int], start_ns: int) -> Iterator[Event]:
    """Events of the steps.

    Args:
        times: Trial.steps_time(intervals=True).
        workers: Number of the process of each worker.
        start_ns: The time that is 0 in the timeline.
    """
    for batch in times.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            process, first = workers[row["worker"]], row["time_ns"]
            phases = {phase: row[f"{phase}_ns"] / 1e6 for phase in PHASES if row[f"{phase}_ns"]}
            arguments: dict[str, Any] = {"attempt": row["attempt"], "step": row["mode_step"]}
            arguments |= {f"{phase} ms": value for phase, value in phases.items()}
            name = f"{row['mode']} {row['mode_step']}"
            last = first + row["duration_ns"]
            yield time_slice(name, process, STEPS_TRACK, (first, last, start_ns), arguments, "step")
            yield from counter("phases of a step (ms)", process, first, start_ns, phases)
