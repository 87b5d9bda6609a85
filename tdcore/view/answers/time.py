"""Answer `time`: the phases of the steps, and the load of the machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tdcore.format.step_times import PHASES
from tdcore.modes import ModeKeys
from tdcore.trial.worker_order import worker_order
from tdcore.view.answers.arrow import coded, is_in, numbers, whole_numbers
from tdcore.view.answers.buckets import StepColumns, points, reduced
from tdcore.view.answers.hosts import hosts
from tdcore.view.answers.packing import pack_doubles, pack_floats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tdcore.view.answers.opened import OpenRun
    from tdcore.view.answers.parameters import Parameters

__all__ = ["PARAMETERS", "answer"]

PARAMETERS = ("worker", "from", "to", "since", "until", "columns")

_COLUMNS = 400
_MS = 1e6
_NOTHING = "the run has no times of steps: no step has begun, or TDCORE_STEP_TIMES is off"


def answer(run: OpenRun, parameters: Parameters) -> dict[str, Any]:
    """`Time` of the contract. The default worker is the first.

    `from` and `to` are steps of each mode; `since` and `until` are seconds of the samples of the machines.
    """
    table = run.trial.steps_time()
    codes, texts = coded(table, "worker")
    workers = sorted({texts[code] for code in np.unique(codes).tolist()}, key=worker_order)
    worker = parameters.choice("worker", workers)
    columns, (low, high) = parameters.columns(_COLUMNS), parameters.steps()
    table = table.filter(pa.array(is_in(codes, texts, (worker,)))) if len(workers) > 1 else table
    if low is not None:
        table = table.filter(pc.greater_equal(table["mode_step"], low))
    if high is not None:
        table = table.filter(pc.less_equal(table["mode_step"], high))
    return {
        "modes": list(_modes(table, columns)),
        "hosts": hosts(
            run.trial, columns, (parameters.number("since", None), parameters.number("until", None))
        ),
        "workers": workers,
        "worker": worker,
        "text": "" if workers else _NOTHING,
    }


def _modes(table: pa.Table, columns: int) -> Iterator[dict[str, Any]]:
    """`PhaseTimes` of the contract for each mode with steps."""
    codes, texts = coded(table, "mode")
    for mode in ModeKeys:
        rows = np.flatnonzero(is_in(codes, texts, (mode.name,)))
        if rows.size:
            yield _phase_times(mode.name, table.take(pa.array(rows)), columns)


def _phase_times(mode: str, table: pa.Table, columns: int) -> dict[str, Any]:
    times = {phase: numbers(table, f"{phase}_ns") for phase in PHASES}
    totals = {phase: float(each.sum()) for phase, each in times.items()}
    order = sorted((phase for phase in PHASES if totals[phase] > 0), key=lambda phase: -totals[phase])
    steps = whole_numbers(table, "mode_step")
    over = StepColumns.over(steps, columns)
    means: list[npt.NDArray[np.float64]] = [
        reduced(times[phase] / _MS, over.of_row, len(over)).mean for phase in order
    ]
    return {
        "mode": mode,
        "phases": order,
        "seconds": [totals[phase] / 1e9 for phase in order],
        "steps": pack_doubles(over.first),
        "milliseconds": pack_floats(np.stack(means) if means else np.empty((0, len(over)))),
        "step": points(steps, numbers(table, "duration_ns") / _MS, columns),
    }
