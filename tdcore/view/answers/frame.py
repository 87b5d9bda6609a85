"""Frame: statistics of several tensors at their steps, as NumPy arrays. Plain values; any thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.modes import ModeKeys
from tdcore.view.answers.arrow import coded, is_in, numbers, valid, whole_numbers
from tdcore.view.answers.changes import update_ratios
from tdcore.view.answers.statistics import BAD_COLUMNS, UPDATE_RATIO, Statistic, bad_counts

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["Frame", "frame_of", "load_frame", "rows_of", "step_range"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_PLACE = ("name", "mode", "mode_step", "step", "seq", "status")
_NO_LIMIT = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """Rows of several tensors in one mode, in order of global steps. Arrays have one entry per row.

    Attributes:
        names: Names of the tensors.
        tensor: Position of the row's tensor in `names`.
        steps: Step of the mode.
        global_steps: Global step.
        seq: Order of execution within the step.
        columns: Numbers by name of the column, NaN without statistics.
        counted: Whether the row has statistics.
        absent, lost: Whether the tensor had no value; whether the value was not stored.
        table: The rows as a table.
    """

    names: Sequence[str]
    tensor: Ints
    steps: Ints
    global_steps: Ints
    seq: Ints
    columns: dict[str, Floats]
    counted: Mask
    absent: Mask
    lost: Mask
    table: pa.Table

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def bad(self) -> Mask:
        """Whether the tensor has elements that are NaN or infinite."""
        found: Mask = bad_counts(self.columns) > 0
        return found

    @property
    def finite(self) -> Floats:
        """Number of finite elements; NaN without statistics."""
        return self.columns["count"] - bad_counts(self.columns)

    def taken(self, rows: Ints) -> Frame:
        """Some of the rows, in this order."""
        return Frame(
            names=self.names,
            tensor=self.tensor[rows],
            steps=self.steps[rows],
            global_steps=self.global_steps[rows],
            seq=self.seq[rows],
            columns={name: values[rows] for name, values in self.columns.items()},
            counted=self.counted[rows],
            absent=self.absent[rows],
            lost=self.lost[rows],
            table=self.table.take(pa.array(rows)),
        )

    def values(self, statistic: Statistic) -> Floats:
        """The statistic of each row."""
        with np.errstate(all="ignore"):
            if statistic.id == UPDATE_RATIO:
                return update_ratios(self.columns, self.tensor, self.steps)
            return statistic.of(self.columns)


def load_frame(
    trial: Trial,
    names: Sequence[str],
    *,
    mode: str,
    worker: str,
    columns: Sequence[str],
    steps: tuple[int | None, int | None] = (None, None),
    more: Sequence[str] = (),
) -> Frame:
    """The statistics of these tensors.

    Args:
        trial: The run.
        names: Names of the tensors.
        mode: Name of the mode.
        worker: Name of the worker; "" for all workers together, whose parts of a tensor are joined.
        columns: Columns of numbers.
        steps: First and last step of the mode, both included.
        more: Further columns of the table.
    """
    merged = not worker and len(trial.workers()) > 1
    wanted = [*_PLACE, *columns, *more]
    table = rows_of(trial, names, mode=mode, steps=steps, columns=wanted, worker=worker, merged=merged)
    return frame_of(table, names, columns)


def step_range(steps: tuple[int | None, int | None]) -> range | None:
    """The steps from a first to a last one, both included; None without a limit."""
    low, high = steps
    return None if low is None and high is None else range(low or 0, _NO_LIMIT if high is None else high + 1)


def rows_of(
    trial: Trial,
    names: Sequence[str] | None,
    *,
    mode: str,
    steps: tuple[int | None, int | None],
    columns: Iterable[str],
    worker: str = "",
    merged: bool = False,
) -> pa.Table:
    """Rows of Trial.stats(), with these columns and those that a frame needs. See load_frame.

    names: None: all tensors.
    """
    limits = step_range(steps)
    of_mode = mode != ModeKeys.GLOBAL.name
    table = trial.stats(
        names,
        mode=ModeKeys[mode],
        steps=limits if of_mode else None,
        workers=worker or None,
        columns=list(dict.fromkeys([*_PLACE, *BAD_COLUMNS, *columns])),
        merged=merged,
    )
    if of_mode:
        return table
    codes, texts = coded(table, "mode")  # Trial.stats returns the rows of all modes
    table = table.filter(pa.array(is_in(codes, texts, (mode,))))
    if limits is None:
        return table
    own = whole_numbers(table, "mode_step")
    return table.filter(pa.array((own >= limits.start) & (own < limits.stop)))


def frame_of(table: pa.Table, names: Sequence[str], columns: Iterable[str]) -> Frame:
    """The rows of a table of `rows_of`. columns: columns of numbers."""
    codes, texts = coded(table, "name")
    place = {name: at for at, name in enumerate(names)}
    positions = np.array([place.get(text, 0) for text in texts], dtype=np.int64)
    status, statuses = coded(table, "status")
    return Frame(
        names=names,
        tensor=positions[codes],
        steps=whole_numbers(table, "mode_step"),
        global_steps=whole_numbers(table, "step"),
        seq=whole_numbers(table, "seq"),
        columns={name: numbers(table, name) for name in dict.fromkeys([*BAD_COLUMNS, *columns])},
        counted=valid(table, "count"),
        absent=is_in(status, statuses, ("absent",)),
        lost=is_in(status, statuses, ("lost", "skipped")),
        table=table,
    )
