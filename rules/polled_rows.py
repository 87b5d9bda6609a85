"""PolledRows: new system samples, or times of steps, of a run that may still be written.

Threads: the thread of the source that owns the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tdcore.format.row_files import RowFiles

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["PolledRows"]

_EVERY_SECONDS = 5.0  # between two lists of the files, while the run is written


class PolledRows:
    """New rows of the files of one kind. clock: monotonic seconds."""

    def __init__(self, files: RowFiles, sink: Sink, clock: Callable[[], float]) -> None:
        from tdcore.trial.row_files import NewRows

        self._rows = NewRows(files, sink)
        self._clock = clock
        self._due = float("-inf")
        self._read_over = False  # whether the rows were read after the end of the run

    def read(self, run_id: str | None, wanted: Callable[[int], bool], *, over: bool) -> Iterator[pa.Table]:
        """The rows that were written since the last call, as tables of a limited size.

        While the run is written, the files are listed at most every five seconds. A file that cannot be read
        raises no exception, but adds a sentence to remarks().

        Args:
            run_id: Id of the run; None if it is not known yet.
            wanted: Whether the rows of an attempt are read.
            over: Whether the run has ended.
        """
        now = self._clock()
        if run_id is None or (now < self._due and over == self._read_over):
            return
        self._due, self._read_over = now + _EVERY_SECONDS, over
        yield from self._rows.read(run_id, wanted)

    def position(self) -> dict[Any, int]:
        """State that a later reader of the same run needs; see resume()."""
        return self._rows.position()

    def resume(self, position: Mapping[Any, int]) -> None:
        """Continue at the `position` of another reader."""
        self._rows.resume(position)

    def remarks(self) -> list[str]:
        """Sentences about files that cannot be read."""
        return self._rows.remarks
