"""Answer `layers`: a heat map of one statistic, tensors in the order of the model by steps."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tdcore.view.answers.buckets import StepColumns, reduced
from tdcore.view.answers.changes import exact_update_ratios
from tdcore.view.answers.frame import Frame, load_frame
from tdcore.view.answers.names import matching
from tdcore.view.answers.outlines import OutlinedCells, outlined_cells
from tdcore.view.answers.packing import pack_doubles, pack_floats, pack_octets
from tdcore.view.answers.places import at, finding_json
from tdcore.view.answers.scope import Scope, preferred
from tdcore.view.answers.statistics import STATISTICS, UPDATE_RATIO, bad_counts

if TYPE_CHECKING:
    from tdcore.view.answers.opened import OpenRun
    from tdcore.view.answers.parameters import Parameters

__all__ = ["PARAMETERS", "answer"]

PARAMETERS = ("statistic", "kind", "mode", "worker", "from", "to", "columns", "pattern")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_COLUMNS = 400
_MOST_CELLS = 2_000_000
_FIRST_KINDS = ("gradient", "weight", "output", "loss", "metric", "scalar")
_FIRST_STATISTIC = {
    "loss": "mean",
    "metric": "mean",
    "scalar": "mean",
    "hyperparameter": "mean",
    "bias": "l2",
    "weight": "l2",
}
_MOST_OUTLINES = 1000
_PRESENT, _NAN, _INFINITE, _ABSENT, _LOST = 1, 2, 4, 8, 16  # CellFlag of the contract


def answer(run: OpenRun, parameters: Parameters) -> dict[str, Any]:
    """`Layers` of the contract."""
    kinds = run.catalog.kinds
    kind = parameters.choice("kind", kinds, preferred(kinds, _FIRST_KINDS))
    statistic = STATISTICS[
        parameters.choice("statistic", list(STATISTICS), _FIRST_STATISTIC.get(kind, "abs_mean"))
    ]
    everything = run.catalog.of_kind(kind)
    scope = Scope.of(run, everything, parameters, columns=_COLUMNS)
    of_mode = [name for name in everything if scope.mode in run.catalog.tensors[name].modes]
    names = matching(of_mode, parameters.text("pattern"))
    frame = load_frame(
        run.trial,
        names,
        mode=scope.mode,
        worker=scope.worker,
        columns=statistic.columns,
        steps=scope.steps,
        more=("nbytes",) if statistic.id == UPDATE_RATIO else (),
    )
    columns = max(1, min(scope.columns, _MOST_CELLS // max(len(names), 1)))
    over = StepColumns.over(frame.steps, columns)
    shape = (len(names), len(over))
    cell = frame.tensor * len(over) + over.of_row
    values, shown = frame.values(statistic), statistic.to_json()
    if statistic.id == UPDATE_RATIO:
        values, exact = exact_update_ratios(run.trial, frame, scope.mode, scope.worker, values)
        shown["label"] += "" if exact else ", at least"
    found = reduced(values, cell, shape[0] * shape[1])
    outlined = outlined_cells(run.findings, names, scope.mode, scope.worker, over)
    return {
        "statistic": shown,
        "statistics": [each.to_json() for each in STATISTICS.values()],
        "kind": kind,
        "kinds": kinds,
        "mode": scope.mode,
        "modes": scope.modes,
        "worker": scope.worker,
        "workers": scope.workers,
        "rows": [run.catalog.tensors[name].to_json() for name in names],
        "first_steps": pack_doubles(over.first),
        "last_steps": pack_doubles(over.last),
        "mean": pack_floats(found.mean),
        "min": pack_floats(found.min),
        "max": pack_floats(found.max),
        "flags": pack_octets(_flags(frame, values, cell, shape[0] * shape[1])),
        "range": _range(found.mean, statistic.scale),
        "outlines": [_outline_json(each) for each in islice(outlined, _MOST_OUTLINES)],
        "first_bad": _first_bad(run, frame, scope.mode, over),
    }


def _flags(frame: Frame, values: Floats, cell: Ints, cells: int) -> npt.NDArray[np.uint8]:
    """CellFlag bits of each cell."""
    nan, positive, negative = (
        frame.columns[name] for name in ("nan_count", "pos_inf_count", "neg_inf_count")
    )
    flags = np.zeros(cells, dtype=np.uint8)
    for bit, rows in (
        (_PRESENT, frame.counted),
        (_NAN, nan > 0),
        (_INFINITE, (positive > 0) | (negative > 0)),
        (_ABSENT, frame.absent),
        (_LOST, frame.lost),
    ):
        there = np.zeros(cells, dtype=np.bool_)
        there[cell[rows]] = True
        flags[there] |= bit
    return flags


def _range(means: Floats, scale: str) -> list[float] | None:
    """Range of the colour scale; None without values."""
    if scale == "share":
        return [0.0, 1.0]
    finite = means[np.isfinite(means)]
    shown = finite[finite > 0] if scale == "log" else finite
    if not shown.size:
        return None
    if scale == "diverging":
        most = float(np.abs(shown).max())
        return [-most, most]
    return [float(shown.min()), float(shown.max())]


def _outline_json(cells: OutlinedCells) -> dict[str, Any]:
    """`Outline` of the contract."""
    return {
        "row": cells.row,
        "first_column": cells.first,
        "last_column": cells.last,
        "finding": finding_json(cells.finding),
    }


def _first_bad(run: OpenRun, frame: Frame, mode: str, over: StepColumns) -> dict[str, Any] | None:
    """`FirstBad` of the contract: the first tensor with NaN or infinite elements, in order of execution."""
    rows = np.flatnonzero(frame.bad)
    if not rows.size:
        return None
    order = np.lexsort([frame.seq[rows], frame.global_steps[rows], frame.steps[rows]])
    row = int(rows[order[0]])
    nan = int(frame.columns["nan_count"][row])
    infinite = int(bad_counts(frame.columns)[row]) - nan
    where = at(run.trial, mode, int(frame.steps[row]), int(frame.global_steps[row]))
    name = frame.names[int(frame.tensor[row])]
    what = " and ".join(
        [*([f"{nan:,} NaN"] if nan else []), *([f"{infinite:,} infinite elements"] if infinite else [])]
    )
    return {
        "row": int(frame.tensor[row]),
        "column": int(over.of_row[row]),
        "at": where,
        "tensor": name,
        "text": f"{name} has {what} at {where['text']}",
    }
