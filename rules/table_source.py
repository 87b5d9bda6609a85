"""TableSource: a source of rows from a table instead of a run, to test rules.

Threads: a source belongs to one engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tdcore.errors import TensorUnavailableForStep
from tdcore.rules.applicability import TrainingInfo
from tdcore.rules.source import RowBatch

if TYPE_CHECKING:
    from tdcore.rules.requirements import RunCapture
    from tdcore.rules.window import Members
    from tdcore.trial.left_out import LeftOut

__all__ = ["TableSource"]


class TableSource:
    """A finished run in a table of index rows, one row per captured tensor.

    payloads: values by row number. notes: notes of the hook. samples: system samples.
    step_times: times of steps.
    """

    def __init__(
        self,
        table: pa.Table,
        *,
        payloads: Mapping[int, npt.NDArray[Any]] | None = None,
        collections: Mapping[str, Members] | None = None,
        notes: Mapping[str, Any] | None = None,
        where: str = "a table",
        samples: pa.Table | None = None,
        step_times: pa.Table | None = None,
    ) -> None:
        self.where = where
        self._table = table
        self._payloads = dict(payloads or {})
        self._collections = dict(collections or {})
        self._notes = dict(notes or {})
        self._samples = [] if samples is None else [samples]
        self._step_times = [] if step_times is None else [step_times]
        workers = 0 if step_times is None else len(pc.unique(step_times.column("worker").cast(pa.string())))
        self._training = TrainingInfo(framework="", world_size=workers) if workers else None

    def next(self, columns: Sequence[str], *, everything: bool = False) -> RowBatch:
        """See Source.next. Returns all rows at the first call, and no rows later."""
        table, self._table = self._table, self._table.slice(0, 0)
        pairs = table.select(["attempt", "worker"]).unify_dictionaries()
        pairs = pairs.group_by(["attempt", "worker"]).aggregate([])
        ended = zip(pairs.column("attempt").to_pylist(), pairs.column("worker").to_pylist(), strict=True)
        return RowBatch(table=table.select(columns), payload=self._payload, ended=frozenset(ended))

    def samples(self) -> Iterator[pa.Table]:
        """See Source.samples. Returns all samples at the first call."""
        samples, self._samples = self._samples, []
        return iter(samples)

    def step_times(self) -> Iterator[pa.Table]:
        """See Source.step_times. Returns all rows at the first call."""
        rows, self._step_times = self._step_times, []
        return iter(rows)

    def members(self, collection: str) -> Members | None:
        """See Source.members."""
        return self._collections.get(collection)

    def capture(self) -> RunCapture | None:
        """See Source.capture."""
        return None

    def notes(self, attempt: int) -> Mapping[str, Any]:
        """See Source.notes. All attempts have the same notes."""
        return self._notes

    def epoch(self, attempt: int, worker: str, step: int) -> int | None:
        """See Source.epoch. A table has no epochs."""
        return None

    def left_out(self) -> LeftOut | None:
        """See Source.left_out."""

    def not_recorded(self) -> tuple[str, ...]:
        """See Source.not_recorded."""
        return ()

    def training(self) -> TrainingInfo | None:
        """See Source.training. The workers are those with times of steps; None if there are none."""
        return self._training

    def begun(self) -> bool:
        """See Source.begun."""
        return True

    def finished(self) -> bool:
        """See Source.finished."""
        return True

    def attempt_ended(self, attempt: int) -> bool:
        """See Source.attempt_ended."""
        return True

    def _payload(self, row: int) -> npt.NDArray[Any]:
        if row not in self._payloads:
            raise TensorUnavailableForStep(f"row {row} of the table has no values")
        return self._payloads[row]
