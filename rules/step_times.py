"""StepTimes: new times of steps of a run, for rules that judge them.

docs/system.md describes the columns. All times are whole nanoseconds, so that sums do not depend on the order
of the additions. Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.format.step_times import COUNTS, PHASES
from tdcore.rules.base import Finding, Rule
from tdcore.rules.columns import Columns
from tdcore.rules.measures.series import groups

__all__ = ["STEP_VALUES", "StepPlace", "StepTimes", "Steps", "step_finding"]

Ints = npt.NDArray[np.int64]

# The columns of Steps.values.
STEP_VALUES = ("duration_ns", *(f"{phase}_ns" for phase in PHASES), "capture_ns", *COUNTS, "gpu_ns")
_HEAD = ("step", "mode_step", "time_ns")


class StepPlace(NamedTuple):
    """The origin of a series of steps."""

    attempt: int
    worker: str
    mode: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Successive whole steps of one place.

    Attributes:
        place: The origin.
        step, mode_step: Numbers of the steps.
        time_ns: Start of each step.
        values: One row per step, one column per name of STEP_VALUES.
    """

    place: StepPlace
    step: Ints
    mode_step: Ints
    time_ns: Ints
    values: Ints

    def of(self, name: str) -> Ints:
        """The values of one column."""
        return self.values[:, STEP_VALUES.index(name)]


class StepTimes:
    """New times of steps, in order of time within each worker.

    Args:
        table: Rows with the columns of tdcore.format.step_times.step_time_schema().
    """

    def __init__(self, table: pa.Table) -> None:
        self.columns = Columns(table)

    def __len__(self) -> int:
        return int(self.columns.table.num_rows)

    @property
    def present(self) -> set[str]:
        """Names of the columns that have a value other than 0."""
        return {name for name in STEP_VALUES if self.columns.ints(name).any()}

    def steps(self, memory: MutableMapping[Any, Any]) -> Iterator[Steps]:
        """The whole steps of each worker and mode.

        The rows of a step are added up. A step is returned when the next step of its mode begins.

        memory: Memory of the rule, which keeps the rows of the newest step.
        """
        columns = self.columns
        everything = np.arange(len(self))
        values = np.column_stack([columns.ints(name) for name in (*_HEAD, *STEP_VALUES)])
        for attempt, worker, mode, rows in groups(columns, everything, "attempt", "worker", "mode"):
            place = StepPlace(attempt, worker, mode)
            key = ("step", *place)
            before = memory.get(key)
            mine = values[rows] if before is None else np.concatenate([before[None], values[rows]])
            starts = np.flatnonzero(np.diff(mine[:, 1], prepend=mine[0, 1] - 1))
            joined = np.add.reduceat(mine, starts, axis=0)
            joined[:, : len(_HEAD)] = mine[starts, : len(_HEAD)]
            memory[key] = joined[-1].copy()
            if len(joined) > 1:
                step, mode_step, time_ns = joined[:-1, : len(_HEAD)].T
                whole = joined[:-1, len(_HEAD) :]
                yield Steps(place=place, step=step, mode_step=mode_step, time_ns=time_ns, values=whole)


def step_finding(
    rule: Rule,
    place: StepPlace,
    step: int,
    mode_step: int,
    *,
    numbers: Mapping[str, Any],
    why: str,
    do: str,
) -> Finding:
    """Create a finding of `rule` at one step.

    Args:
        rule: The rule.
        place: The origin of the step.
        step, mode_step: Numbers of the step.
        numbers: Measured values and their limits, by name.
        why: One sentence with the numbers.
        do: Advice.
    """
    return Finding(
        rule=type(rule).__name__,
        code=rule.code,
        step=step,
        mode=place.mode,
        mode_step=mode_step,
        worker=place.worker,
        attempt=place.attempt,
        tensor="",
        numbers=numbers,
        why=why,
        do=do,
    )
