"""StepTimeRecorder: writes the times of steps from the ring's queue to files below time/.

Rows stay in the queue until they are durable, so the next flusher writes the rows of one that was killed.
While the sink fails, or if steps are very short, rows wait in memory instead; above a limit the oldest ones
are dropped, which leaves a gap in their numbers. Threads: the flusher's.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tdcore.flusher.messages import print_message
from tdcore.flusher.options import FlusherOptions
from tdcore.flusher.row_file_writer import RowFileWriter
from tdcore.format.layout import FileRange
from tdcore.format.row_files import MAX_ROW, TIME_LIMIT
from tdcore.format.step_times import COUNTS, DURATION_LIMIT, PHASES, STEP_TIME_FILES
from tdcore.modes import ModeKeys
from tdcore.sinks.base import Sink

__all__ = ["StepTimeRecorder", "step_time_columns"]

_MAX_WAITING = 100_000  # rows in memory, 14 MB
_MOST_PER_SECOND = 10_000_000  # above the rows of all trainings: the stopwatch alone takes longer than 100 ns
Rows = npt.NDArray[np.void]


class StepTimeQueue(Protocol):
    """The methods of the ring's consumer that StepTimeRecorder calls."""

    @property
    def pending_step_times(self) -> int:
        """Number of rows in the queue."""
        ...

    @property
    def step_time_slots(self) -> int:
        """Maximum number of rows in the queue."""
        ...

    def step_times(self, most: int) -> bytes:
        """The oldest rows, as packed structs. They stay in the queue."""
        ...

    def release_step_times(self, count: int) -> None:
        """Remove the oldest rows from the queue."""
        ...


class StepTimeRecorder:
    """Writer of the times of steps for the worker and attempt in `place`, whose range is ignored.

    Args:
        queue: The ring's consumer.
        sink: The run.
        place: Worker and attempt.
        run_id: Id of the run.
        options: row_delay and remote_row_delay.
        continues: Whether an earlier flusher of this attempt may have written files.
    """

    def __init__(
        self,
        queue: StepTimeQueue,
        sink: Sink,
        place: FileRange,
        *,
        run_id: str,
        options: FlusherOptions,
        continues: bool,
    ) -> None:
        from tdcore._core import STEP_TIME_DTYPE

        layout: Any = STEP_TIME_DTYPE  # NumPy's dict form
        self._dtype: np.dtype[np.void] = np.dtype(layout)
        self._queue = queue
        self._place = place
        self._run_id = run_id
        self._taken: Rows = np.empty(0, dtype=self._dtype)  # removed from the queue, and not written yet
        self._writing = 0  # number of the oldest rows that are part of the last write
        self._reported = False  # whether impossible rows were reported
        # Highest number of a row, and when it was read. None: an earlier flusher has read rows before.
        self._highest: int | None = None if continues else -1
        self._read_at: float | None = None
        self._writer = RowFileWriter(
            sink, STEP_TIME_FILES, "", place,
            encode=self._encode, run_id=run_id, options=options, continues=continues, absolute=True,
        )  # fmt: skip

    def poll(self, now: float) -> None:
        """Write rows when they are due. now: monotonic seconds.

        Raises:
            SinkError: The run was removed ("gone"); the caller writes it again.
        """
        pending = self._queue.pending_step_times
        if pending > self._queue.step_time_slots // 2:
            self._take(now)
        if self._writer.due(now) and (pending or len(self._taken)):
            self._write(now)

    def finish(self, now: float) -> None:
        """Write all rows. Raises as poll(). No other write to the sink is in progress.

        If a bucket is not available, the rows are stored in the spool.
        """
        self._writer.wait()
        self._take(now)
        left = len(self._taken) + 1
        while 0 < len(self._taken) < left:  # one write for each part without a gap
            left = len(self._taken)
            self._write(now, last=True)
        if len(self._taken):
            print_message(f"{self._place.worker}: times of {len(self._taken)} steps were not written")

    def merge_all(self) -> None:
        """Merge all files into one, after finish(). Raises as poll()."""
        self._writer.merge_all()

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def _queued(self, now: float) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """The rows in the queue, and whether each of them is possible."""
        rows = np.frombuffer(self._queue.step_times(self._queue.step_time_slots), dtype=self._dtype)
        highest = self._highest_possible(now)
        possible = _possible(rows) & (rows["row"] <= highest)
        if possible.any():
            self._highest = max(int(rows["row"][possible].max()), self._highest or 0)
            self._read_at = now
        return rows, possible

    def _highest_possible(self, now: float) -> int:
        """Highest possible number of a row.

        A damaged number above all others would make the writer skip the later rows: their numbers would be
        below those of a file.
        """
        if self._highest is None:
            return MAX_ROW
        seconds = 1.0 + (0.0 if self._read_at is None else now - self._read_at)
        return min(MAX_ROW, self._highest + int(_MOST_PER_SECOND * seconds))

    def _take(self, now: float) -> None:
        """Move the rows of the queue to the memory of the flusher. Impossible rows are dropped."""
        self._keep(*self._queued(now))

    def _keep(self, queued: Rows, possible: npt.NDArray[np.bool_]) -> None:
        """Move these rows of the queue to the memory of the flusher."""
        rows = np.concatenate([self._taken, queued[possible]])
        self._queue.release_step_times(len(queued))
        if not possible.all() and not self._reported:
            self._reported = True
            odd = np.count_nonzero(~possible)
            print_message(
                f"{self._place.worker}: the times of {odd} steps have impossible values "
                "and are dropped; later ones are dropped without a message"
            )
        writing = self._writing if self._writer.busy else 0
        if len(rows) - writing > _MAX_WAITING:
            rows = np.concatenate([rows[:writing], rows[-_MAX_WAITING:]])
        self._taken = rows

    def _write(self, now: float, last: bool = False) -> None:
        queued, possible = self._queued(now)
        if not possible.all():
            self._keep(queued, possible)
            queued = queued[:0]
        rows = np.concatenate([self._taken, queued])
        if not len(rows):
            return
        gaps = np.flatnonzero(np.diff(rows["row"]) != 1)
        if len(gaps):
            rows = rows[: gaps[0] + 1]

        def written() -> None:
            of_memory = min(len(rows), len(self._taken))
            self._taken = self._taken[of_memory:]
            self._queue.release_step_times(len(rows) - of_memory)
            self._writing = 0

        self._writing = len(rows)
        self._writer.write(rows, now, written, first=int(rows["row"][0]), last=last)

    def _encode(self, rows: Rows, place: FileRange) -> memoryview:
        from tdcore.flusher.row_tables import to_parquet  # imports pyarrow

        return to_parquet(step_time_columns(rows, place), STEP_TIME_FILES.schema(), self._run_id)


def _possible(rows: Rows) -> npt.NDArray[np.bool_]:
    """Whether readers accept each row, apart from its number. A damaged ring can have any values."""
    phases = rows["phases"]
    times = np.column_stack([phases, rows["capture_ns"]])
    counts = np.column_stack([rows[name] for name in ("step", "mode_step", *COUNTS)])
    good = (rows["time_ns"] >= 0) & (rows["time_ns"] < TIME_LIMIT)
    good &= ((times >= 0) & (times < DURATION_LIMIT >> 6)).all(axis=1)
    return np.asarray(
        good & (counts >= 0).all(axis=1) & (rows["gpu_ns"] < DURATION_LIMIT >> 6), dtype=np.bool_
    )


def step_time_columns(rows: Rows, place: FileRange) -> dict[str, Any]:
    """Rows of the queue as columns of a file. place: worker and attempt."""
    modes = {mode.value: mode.name for mode in ModeKeys}
    phases, gpu_ns = rows["phases"], rows["gpu_ns"]
    return {
        "attempt": np.full(len(rows), place.attempt),
        "worker": [place.worker] * len(rows),
        "row": rows["row"].astype(np.int64),
        "mode": [modes.get(mode, ModeKeys.GLOBAL.name) for mode in rows["mode"].tolist()],
        "mode_step": rows["mode_step"],
        "step": rows["step"],
        "time_ns": rows["time_ns"],
        "duration_ns": phases.sum(axis=1),
        **{f"{phase}_ns": np.ascontiguousarray(phases[:, at]) for at, phase in enumerate(PHASES)},
        "capture_ns": rows["capture_ns"],
        **{count: rows[count] for count in COUNTS},
        "gpu_ns": [None if each < 0 else each for each in gpu_ns.tolist()],
    }
