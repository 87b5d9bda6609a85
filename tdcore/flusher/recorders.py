"""Recorders: parts of the flusher that write numbered rows next to the records of the ring.

Threads: the flusher's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tdcore.flusher.step_times import StepTimeRecorder
from tdcore.flusher.system import SystemRecorder
from tdcore.format.layout import FileRange

if TYPE_CHECKING:
    from tdcore._core import Consumer
    from tdcore.flusher.options import FlusherOptions
    from tdcore.sinks.base import Sink

__all__ = ["RowRecorder", "recorders_of"]


class RowRecorder(Protocol):
    """Writer of the rows of one worker and attempt. now: monotonic seconds.

    poll(), finish() and merge_all() raise SinkError if the run was removed ("gone"); other errors of the sink
    are handled.
    """

    def poll(self, now: float) -> None:
        """Do what is due."""
        ...

    def finish(self, now: float) -> None:
        """Write all rows. No other write to the sink is in progress."""
        ...

    def merge_all(self) -> None:
        """Merge all files into one, after finish()."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


def recorders_of(
    job: Mapping[str, Any], sink: Sink, options: FlusherOptions, trainer_pid: int, consumer: Consumer
) -> list[RowRecorder]:
    """The recorders of a flusher's job (flusher/main.py), as its options and its trainer need them."""
    place, run_id = FileRange(job["worker"], job["attempt"], 0, 0), job.get("run_id", "")
    continues = consumer.epoch > 1  # an earlier flusher may have written rows
    found: list[RowRecorder] = []
    if options.system_interval:
        found.append(
            SystemRecorder(
                sink, place, trainer_pid=trainer_pid, run_id=run_id, options=options, continues=continues
            )
        )
    if consumer.step_time_slots:
        found.append(
            StepTimeRecorder(consumer, sink, place, run_id=run_id, options=options, continues=continues)
        )
    return found
