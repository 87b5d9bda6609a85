"""Picture `time`: duration of the steps by phase, for each mode. Functions without state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tdcore.errors import InvalidWorker
from tdcore.format.step_times import PHASES
from tdcore.modes import ModeKeys
from tdcore.plot.figures import (
    Axes,
    RunFigure,
    add_legend,
    edges_of,
    empty_figure,
    new_figure,
    set_title,
    shown,
    step_axis,
)
from tdcore.trial.worker_order import worker_order
from tdcore.view.answers.arrow import coded, is_in, numbers, whole_numbers
from tdcore.view.answers.buckets import StepColumns, reduced

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["time"]

_MS = 1e6
_MOST_COLUMNS = 150  # a bar needs some pixels
_LEAST_SHARE = 0.001  # of the time, for a phase with a colour
_HATCHES = ("", "", "", "", "", "", "///", "...", "xxx", "\\\\\\")
_COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#cccccc", "#666666",
    "#444444",
)  # fmt: skip


def time(trial: Trial, worker: str | None) -> RunFigure:
    """See Plots.time."""
    table = trial.steps_time()
    if not table.num_rows:
        reason = "the run has no times of steps: no step has begun, or TDCORE_STEP_TIMES is off"
        return empty_figure(trial, "duration of the steps", reason)
    codes, texts = coded(table, "worker")
    workers = sorted({texts[code] for code in np.unique(codes).tolist()}, key=worker_order)
    chosen = workers[0] if worker is None else worker
    if chosen not in workers:
        raise InvalidWorker(f"the run has no times of steps of {chosen!r}; it has {', '.join(workers)}")
    table = table.filter(pa.array(is_in(codes, texts, (chosen,))))
    mode_codes, modes = coded(table, "mode")
    there = [mode.name for mode in ModeKeys if is_in(mode_codes, modes, (mode.name,)).any()]
    figure, parts = new_figure(1.2 + 2.8 * len(there), len(there))
    for axes, mode in zip(parts, there, strict=True):
        _draw(axes, table.filter(pa.array(is_in(mode_codes, modes, (mode,)))), mode)
    of_worker = f", {shown(chosen)}" if len(workers) > 1 else ""
    set_title(figure, trial, f"duration of the steps by phase, {' and '.join(there)} steps{of_worker}")
    return figure


def _draw(axes: Axes, table: pa.Table, mode: str) -> None:
    """Stacked bars: the mean of each phase in each pixel column."""
    steps = whole_numbers(table, "mode_step")
    over = StepColumns.over(steps, _MOST_COLUMNS)
    times = {phase: numbers(table, f"{phase}_ns") / _MS for phase in PHASES}
    total = sum(float(each.sum()) for each in times.values()) or 1.0
    edges, bottom = edges_of(over.first, over.last), np.zeros(len(over))
    for at, (phase, each) in enumerate(times.items()):
        share = float(each.sum()) / total
        if share < _LEAST_SHARE:
            continue
        height = reduced(each, over.of_row, len(over)).mean
        axes.stairs(
            bottom + height, edges, baseline=bottom, fill=True, facecolor=_COLOURS[at], edgecolor="white",
            linewidth=0, hatch=_HATCHES[at], label=f"{phase} {100 * share:.1f} %", gid=phase,
        )  # fmt: skip
        bottom = bottom + height
    _limit(axes, bottom)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylabel("milliseconds per step")
    step_axis(axes, mode)
    add_legend(axes)


def _limit(axes: Axes, heights: np.ndarray) -> None:
    """Limit the y axis to four times the median: one slow step does not hide the others."""
    highest, usual = float(heights.max(initial=0.0)), float(np.median(heights)) if len(heights) else 0.0
    limit = 4 * usual
    if not 0 < limit < highest:
        return
    axes.set_ylim(0, limit)
    axes.text(
        0.99, 0.97, f"highest: {highest:,.4g} ms", ha="right", va="top", transform=axes.transAxes,
        fontsize="small", bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 2},
    )  # fmt: skip
