"""Answer `ranks`: one tensor on all workers, with the workers that differ from the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tdcore.trial.compare_workers import compare_values
from tdcore.trial.worker_order import worker_order
from tdcore.view.answers.arrow import coded, numbers, whole_numbers
from tdcore.view.answers.buckets import StepColumns, reduced
from tdcore.view.answers.frame import frame_of, rows_of
from tdcore.view.answers.packing import pack_doubles, pack_floats
from tdcore.view.answers.places import at
from tdcore.view.answers.scope import Scope, preferred
from tdcore.view.answers.statistics import COMMON

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.view.answers.opened import OpenRun
    from tdcore.view.answers.parameters import Parameters

__all__ = ["PARAMETERS", "answer"]

PARAMETERS = ("name", "statistic", "mode", "from", "to", "columns")

Floats = npt.NDArray[np.float64]

_COLUMNS = 400
_FIRST_KINDS = ("loss", "gradient", "output", "input", "weight")
_LEAST_WORKERS = 3  # for outliers: of two workers, neither is the outlier
_OUTLIER = 6.0  # in standard deviations, estimated from the median absolute deviation
_LARGEST = 1e9  # deviation of a worker from workers that are all equal, and of a worker with NaN
_MOST_OUTLIERS = 100
_PLACE = (
    "attempt",
    "mode",
    "mode_step",
    "step",
    "name",
    "kind",
    "call",
    "worker",
    "shard",
    "shape",
    "seq",
    "status",
)


def answer(run: OpenRun, parameters: Parameters) -> dict[str, Any]:
    """`Ranks` of the contract."""
    tensors = run.catalog.tensors
    candidates = [each.name for each in tensors.values() if len(each.workers) > 1]
    name = parameters.choice("name", candidates, _default(run, candidates))
    kind = tensors[name].kind if name else ""
    statistic = COMMON[parameters.choice("statistic", list(COMMON), "mean" if kind == "loss" else "l2")]
    scope = Scope.of(run, [name] if name else [], parameters, columns=_COLUMNS)
    found: dict[str, Any] = {
        "tensor": name,
        "candidates": candidates,
        "statistic": statistic.to_json(),
        "statistics": [each.to_json() for each in COMMON.values()],
        "mode": scope.mode,
        "modes": scope.modes,
        "workers": sorted(tensors[name].workers, key=worker_order) if name else scope.workers,
        "steps": pack_doubles(np.empty(0)),
        "values": pack_floats(np.empty(0)),
        "deviations": pack_floats(np.empty(0)),
        "outliers": [],
        "text": "",
    }
    if not name:
        number = len(scope.workers)
        found["text"] = "no tensor was saved by several workers" if number > 1 else "the run has one worker"
        return found
    table = rows_of(
        run.trial, [name], mode=scope.mode, steps=scope.steps, columns=[*_PLACE, *statistic.columns]
    )
    frame = frame_of(table, [name], statistic.columns)
    compared = compare_values(table, frame.values(statistic), across_shards=False)
    wrong = compare_values(table, frame.bad.astype(np.float64), across_shards=False)  # rows in the same order
    return found | _filled(run, compared, numbers(wrong, "deviation"), scope, found["workers"])


def _filled(
    run: OpenRun, compared: pa.Table, wrong: Floats, scope: Scope, workers: list[str]
) -> dict[str, Any]:
    """The arrays and outliers of the answer.

    Args:
        run: The run.
        compared: Result of compare_values.
        wrong: The same rows: infinite for a worker with NaN or infinite elements that most workers lack. Its
            deviation is the largest, because statistics describe finite elements only.
        scope: Mode and columns.
        workers: Rows of the arrays.
    """
    codes, texts = coded(compared, "worker")
    places = {worker: at for at, worker in enumerate(workers)}
    worker = np.array([places.get(text, 0) for text in texts], dtype=np.int64)[codes] if len(codes) else codes
    steps = whole_numbers(compared, "mode_step")
    deviations = np.where(np.isposinf(wrong), _LARGEST, numbers(compared, "deviation"))
    deviations = np.clip(deviations, -_LARGEST, _LARGEST)
    over = StepColumns.over(steps, scope.columns)
    cell = worker * len(over) + over.of_row
    cells = len(workers) * len(over)
    values = reduced(numbers(compared, "value"), cell, cells)
    spread = reduced(deviations, cell, cells)
    furthest = np.where(np.abs(spread.min) > np.abs(spread.max), spread.min, spread.max)
    alike = whole_numbers(compared, "alike")
    far = np.flatnonzero((alike >= _LEAST_WORKERS) & (np.abs(deviations) >= _OUTLIER))
    far = far[np.argsort(-np.abs(deviations[far]), kind="stable")[:_MOST_OUTLIERS]]
    global_steps = whole_numbers(compared, "step")
    outliers = [
        {
            "worker": workers[int(worker[row])],
            "at": at(run.trial, scope.mode, int(steps[row]), int(global_steps[row])),
            "deviation": float(deviations[row]),
        }
        for row in far.tolist()
    ]
    alone = bool(len(alike)) and int(alike.max()) < 2
    return {
        "steps": pack_doubles(over.first),
        "values": pack_floats(values.mean),
        "deviations": pack_floats(furthest),
        "outliers": outliers,
        "text": "each worker has another part of this tensor, so that the parts are not compared"
        if alone
        else "",
    }


def _default(run: OpenRun, candidates: list[str]) -> str:
    """A candidate with a finding about ranks, else one of the first kind."""
    tensors, known = run.catalog.tensors, set(candidates)
    ranked = ("OutlierRank", "UnequalRanks", "Straggler")
    of_finding = next(
        (each.tensor for each in run.findings if each.rule in ranked and each.tensor in known), ""
    )
    kind = preferred([tensors[name].kind for name in candidates], _FIRST_KINDS)
    return of_finding or next((name for name in candidates if kind in (None, tensors[name].kind)), "")
