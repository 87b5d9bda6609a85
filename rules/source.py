"""Source: the interface through which the engine reads rows, of a run (run_source.py) or of a table.

A source returns each captured tensor once, after its step is complete for its worker (rules/completeness.py).
So a rule never judges half a step, and live and offline runs judge the same rows. The column `step` has
common steps (tdcore/trial/common_steps.py), as known when the rows are returned. This number can be too low
while the first worker is behind and still evaluates. The mode step is final. Threads: a source belongs to one
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.rules.applicability import TrainingInfo
from tdcore.rules.requirements import RunCapture
from tdcore.rules.window import Members

if TYPE_CHECKING:
    from tdcore.trial.left_out import LeftOut

__all__ = ["COLUMNS", "Ended", "RowBatch", "Source"]

# The columns of every window. A rule names additional columns in a class variable `columns`.
COLUMNS = (
    "attempt", "worker", "mode", "mode_step", "step", "seq", "name", "kind", "origin", "call", "dtype",
    "status", "reason", "nbytes", "time_ns", "count", "nan_count", "pos_inf_count", "neg_inf_count",
    "zero_count", "subnormal_count", "min", "max", "mean", "m2", "abs_sum", "square_sum", "abs_min",
    "abs_max",
)  # fmt: skip

Ended = frozenset[tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    """Captured tensors of complete steps, one row each, in order of steps within each worker.

    Attributes:
        table: The rows. It has a column `own_step` if workers number their steps differently
            (Columns.own_steps).
        payload: Reads the values of one row.
        ended: (attempt, worker) pairs that have no rows after these.
        more: Whether the next call of Source.next returns further rows that are complete now. A long history
            is returned in several batches of whole steps, so that the memory does not grow with the run.
            Rules judge each of them as at the time of its newest row.
        positions: Position of each row in the order of execution of its worker, comparable with rows of other
            batches; None: the number of the row in the batch.
    """

    table: pa.Table
    payload: Callable[[int], npt.NDArray[Any]]
    ended: Ended
    more: bool = False
    positions: npt.NDArray[np.int64] | None = None


class Source(Protocol):
    """The interface of a run to the engine."""

    where: str

    def next(self, columns: Sequence[str], *, everything: bool = False) -> RowBatch:
        """The rows that became complete since the last call, possibly none.

        everything: whether to include the newest steps, which may be incomplete.
        """
        ...

    def samples(self) -> Iterator[pa.Table]:
        """The system samples that were written since the last call, as tables of a limited size.

        The samples of a worker are in order of time. A table has the columns of system_schema()
        (tdcore/format/system.py).
        """
        ...

    def step_times(self) -> Iterator[pa.Table]:
        """The times of steps that were written since the last call, as tables of a limited size.

        The rows of a worker are in order of time. A table has the columns of step_time_schema()
        (tdcore/format/step_times.py).
        """
        ...

    def members(self, collection: str) -> Members | None:
        """The tensors of a collection; None if the run has no collection of that name."""
        ...

    def capture(self) -> RunCapture | None:
        """The collections that the newest attempt saves; None if unknown."""
        ...

    def notes(self, attempt: int) -> Mapping[str, Any]:
        """The notes of an attempt's hook, see Trial.notes(); {} if there are none."""
        ...

    def epoch(self, attempt: int, worker: str, step: int) -> int | None:
        """The epoch of a saved step (Hook.set_epoch); None if it is not known."""
        ...

    def left_out(self) -> LeftOut | None:
        """Names that the newest attempt could not record; None if there are none."""
        ...

    def not_recorded(self) -> tuple[str, ...]:
        """Requested tensors that the hook did not record, from its note at the end; empty without a note."""
        ...

    def training(self) -> TrainingInfo | None:
        """Framework and world size of the newest attempt; None if unknown."""
        ...

    def begun(self) -> bool:
        """Whether the run exists: a trainer has started, or there are rows."""
        ...

    def finished(self) -> bool:
        """Whether the newest attempt has ended on all its workers, as of the last call of `next`."""
        ...

    def attempt_ended(self, attempt: int) -> bool:
        """Whether this attempt has ended on all its workers, as of the last call of `next`."""
        ...
