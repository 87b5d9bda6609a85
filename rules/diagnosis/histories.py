"""History: one tensor of one worker as arrays, from rows of the index.

Plain values; payloads are not read. Threads: any, after creation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.rules.columns import Columns, Floats, Ints

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FACT_COLUMNS", "FactRows", "History", "histories_of"]

_TENSOR = ("worker", "mode", "name")
_STATISTICS = (
    "count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count", "min", "max", "mean", "m2",
    "square_sum", "abs_max",
)  # fmt: skip
FACT_COLUMNS = (
    *_TENSOR, "mode_step", "step", "seq", "kind", "origin", "call", "dtype", "shape", "status", "reason",
    *_STATISTICS,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One tensor of one worker in one mode, first call of each step, in order of steps.

    All arrays have one entry per captured value.

    Attributes:
        rms: Root of the mean square.
        zeros: Share of elements that are zero.
        bad: Number of elements that are NaN or infinite.
        shape: Shape of the first value.
    """

    name: str
    kind: str
    mode: str
    worker: str
    origin: str
    dtype: str
    shape: tuple[int, ...]
    order: int
    steps: Ints
    global_steps: Ints
    count: Floats
    rms: Floats
    mean: Floats
    std: Floats
    least: Floats
    most: Floats
    largest: Floats
    square_sum: Floats
    zeros: Floats
    bad: Floats

    def __len__(self) -> int:
        return int(self.steps.size)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.dtype.startswith(("F", "BF"))

    @property
    def is_matrix(self) -> bool:
        """Whether the tensor has two axes or more."""
        return len(self.shape) >= 2

    @property
    def fan_in(self) -> int:
        """Number of inputs of one unit of a weight."""
        return int(np.prod(self.shape[1:])) if len(self.shape) > 1 else 1

    def until(self, step: int) -> npt.NDArray[np.bool_]:
        """Mask of the values of the steps before `step`."""
        found: npt.NDArray[np.bool_] = self.steps < step
        return found


Histories: TypeAlias = dict[tuple[str, str], History]  # by mode and name
AbsentCounts: TypeAlias = dict[tuple[str, str], dict[str, int]]
RankHistories: TypeAlias = dict[tuple[str, str], tuple[History, ...]]


def histories_of(table: pa.Table) -> tuple[Histories, AbsentCounts, RankHistories]:
    """(histories, absent, ranks) of Facts, from rows of the index with FACT_COLUMNS."""
    return FactRows(table).histories(np.arange(table.num_rows))


class FactRows:
    """Rows with FACT_COLUMNS as arrays. Values are computed for all rows together."""

    def __init__(self, table: pa.Table) -> None:
        self._columns = columns = Columns(table)
        names = (*_STATISTICS, "mode_step", "step", "seq")
        self._numbers = {name: columns.floats(name) for name in names}
        self._values = _computed(self._numbers)
        self._ranks = [_ranks(*columns.codes(name)) for name in _TENSOR]
        # Rows with statistics of the first call of a step.
        is_ok = columns.where("status", ("ok", "lost").__contains__) & (columns.ints("call") == 0)
        self._is_counted = is_ok & ~np.isnan(self._numbers["count"])
        self._is_absent = columns.where("status", "absent".__eq__)

    def histories(self, rows: Ints) -> tuple[Histories, AbsentCounts, RankHistories]:
        """(histories, absent, ranks) of Facts, from these rows."""
        found: dict[tuple[str, str], list[History]] = {}
        absent: AbsentCounts = {}
        first_seq: dict[tuple[str, str], tuple[float, float]] = {}  # of absent tensors
        for group in self._of_tensors(rows):
            worker, mode, name = (self._text(column, group[0]) for column in _TENSOR)
            place = (mode, name)
            counts = self._reasons(group[self._is_absent[group]])
            if sum(counts.values()) > sum(absent.get(place, {}).values()):
                absent[place] = counts  # of the worker with the most steps
                first_seq[place] = (self._numbers["step"][group[0]], self._numbers["seq"][group[0]])
            counted = group[self._is_counted[group]]
            if counted.size:
                found.setdefault(place, []).append(self._history(counted, worker, mode, name))
        for histories in found.values():
            histories.sort(key=lambda one: one.worker)
        by_seq = sorted(found, key=lambda place: (found[place][0].steps[0], found[place][0].order))
        absent = {place: absent[place] for place in sorted(absent, key=first_seq.__getitem__)}
        return {place: found[place][0] for place in by_seq}, absent, {p: tuple(found[p]) for p in by_seq}

    def _of_tensors(self, rows: Ints) -> list[Ints]:
        """The rows of each tensor of each worker and mode, by step, in the order of these texts."""
        if not rows.size:
            return []
        keys = [ranks[rows] for ranks in self._ranks]
        order = np.lexsort((self._numbers["step"][rows], *reversed(keys)))
        differs = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
        return np.split(rows[order], np.flatnonzero(differs) + 1)

    def _text(self, column: str, row: int) -> str:
        """The text of a row; null becomes ""."""
        return self._columns.text(column, int(row))

    def _reasons(self, rows: Ints) -> dict[str, int]:
        """Number of these rows with each reason."""
        if not rows.size:
            return {}
        return dict(Counter(map(str, self._columns.table.column("reason").take(rows).to_pylist())))

    def _history(self, rows: Ints, worker: str, mode: str, name: str) -> History:
        """The history of one tensor of a worker."""
        first = int(rows[0])
        return History(
            name=name,
            kind=self._text("kind", first),
            mode=mode,
            worker=worker,
            origin=self._text("origin", first),
            dtype=self._text("dtype", first),
            shape=tuple(self._columns.table.column("shape")[first].as_py() or ()),
            order=int(self._numbers["seq"][first]),
            steps=self._numbers["mode_step"][rows].astype(np.int64),
            global_steps=self._numbers["step"][rows].astype(np.int64),
            **{field: values[rows] for field, values in self._values.items()},
        )


def _computed(number: Mapping[str, Floats]) -> dict[str, Floats]:
    """The arrays of History by field, for all rows."""
    bad = number["nan_count"] + number["pos_inf_count"] + number["neg_inf_count"]
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.maximum(number["count"] - bad, 1)
        return {
            "count": number["count"],
            "rms": np.sqrt(number["square_sum"] / finite),
            "mean": number["mean"],
            "std": np.sqrt(np.maximum(number["m2"], 0) / finite),
            "least": number["min"],
            "most": number["max"],
            "largest": number["abs_max"],
            "square_sum": number["square_sum"],
            "zeros": number["zero_count"] / np.maximum(number["count"], 1),
            "bad": bad,
        }


def _ranks(codes: Ints, texts: list[str | None]) -> Ints:
    """The place of each row's text in the sorted texts."""
    ranks = np.empty(len(texts), dtype=np.int64)
    ranks[sorted(range(len(texts)), key=lambda code: str(texts[code]))] = np.arange(len(texts))
    return ranks[codes]
