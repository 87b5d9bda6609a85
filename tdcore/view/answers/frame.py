"""Frame: statistics of several tensors at their steps, as NumPy arrays. Plain values; any thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tdcore.modes import ModeKeys
from tdcore.view.answers.arrow import coded, is_in, numbers, valid, whole_numbers
from tdcore.view.answers.changes import update_ratios
from tdcore.view.answers.statistics import BAD_COLUMNS, UPDATE_RATIO, Statistic, bad_counts

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.trial import Trial

__all__ = ["Frame", "load_frame"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_PLACE = ("name", "mode", "mode_step", "step", "seq", "call", "status")


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
    columns: Iterable[str],
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
    wanted = dict.fromkeys([*BAD_COLUMNS, *columns])
    several = not worker and len(trial.workers()) > 1
    low, high = steps
    limits = (
        None if low is None and high is None else range(low or 0, 2**63 - 1 if high is None else high + 1)
    )
    table = trial.stats(
        names,
        mode=ModeKeys[mode],
        steps=limits if mode != "GLOBAL" else None,
        workers=worker or None,
        columns=list(dict.fromkeys([*_PLACE, *wanted, *more])),
        merged=several,
    )
    if mode == "GLOBAL":  # Trial.stats returns the rows of all modes
        codes, texts = coded(table, "mode")
        table = table.filter(is_in(codes, texts, ("GLOBAL",)))
    codes, texts = coded(table, "name")
    place = {name: at for at, name in enumerate(names)}
    positions = np.array([place.get(text, 0) for text in texts], dtype=np.int64)
    status, statuses = coded(table, "status")
    return Frame(
        names=names,
        tensor=positions[codes] if len(codes) else codes,
        steps=whole_numbers(table, "mode_step"),
        global_steps=whole_numbers(table, "step"),
        seq=whole_numbers(table, "seq"),
        columns={name: numbers(table, name) for name in wanted},
        counted=valid(table, "count"),
        absent=is_in(status, statuses, ("absent",)) if len(status) else np.empty(0, dtype=np.bool_),
        lost=is_in(status, statuses, ("lost", "skipped")) if len(status) else np.empty(0, dtype=np.bool_),
        table=table,
    )
