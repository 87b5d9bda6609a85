"""Times of steps in a timeline: a slice for each step, and a counter with its phases.

The order of the phases within a step is not recorded, so a step has no slices for them. Threads: any; no
state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

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
    ends = _ends(times)
    of_worker: dict[int, set[str]] = {}  # phases that a worker has had
    for batch in times.to_batches(max_chunksize=10_000):
        last_of_rows, ends = np.split(ends, [batch.num_rows])
        for row, last in zip(batch.to_pylist(), last_of_rows.tolist(), strict=True):
            process, first = workers[row["worker"]], row["time_ns"]
            phases = {phase: row[f"{phase}_ns"] / 1e6 for phase in PHASES if row[f"{phase}_ns"]}
            arguments: dict[str, Any] = {"attempt": row["attempt"], "step": row["mode_step"]}
            arguments |= {f"{phase} ms": value for phase, value in phases.items()}
            name = f"{row['mode']} {row['mode_step']}"
            yield time_slice(name, process, STEPS_TRACK, (first, last, start_ns), arguments, "step")
            # A counter keeps its value until the next event, so a phase that has ended gets a 0.
            ended = of_worker.setdefault(process, set()) - phases.keys()
            of_worker[process] |= phases.keys()
            values = phases | dict.fromkeys(sorted(ended), 0.0)
            yield from counter("phases of a step (ms)", process, first, start_ns, values)


def _ends(times: pa.Table) -> npt.NDArray[np.int64]:
    """End of the slice of each row: its own end, or the start of the worker's next row if it is earlier.

    The start of a row is a time of the day, and its duration is of a clock that never jumps. If the time of
    the day is adjusted meanwhile, a row ends some nanoseconds after the next one begins. Perfetto does not
    show slices of a track that overlap.
    """
    first, duration = (np.asarray(times[name].to_numpy()) for name in ("time_ns", "duration_ns"))
    workers = times["worker"].cast("string").combine_chunks().dictionary_encode().indices
    worker = np.asarray(workers, dtype=np.int64)
    order = np.lexsort((first, worker))
    following = np.full(len(first), np.iinfo(np.int64).max)
    same = worker[order[1:]] == worker[order[:-1]]
    following[order[:-1][same]] = first[order[1:][same]]
    ends: npt.NDArray[np.int64] = np.minimum(first + duration, following)
    return ends
