"""Picture `ranks`: one statistic of a tensor on all workers. Functions without state."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tdcore.modes import ModeKeys
from tdcore.plot.figures import (
    COLOURS,
    Curve,
    RunFigure,
    add_legend,
    chosen_mode,
    draw_panel,
    empty_figure,
    modes_of,
    new_figure,
    set_title,
    shown,
)
from tdcore.trial.worker_order import worker_order
from tdcore.view.answers.arrow import coded, numbers, whole_numbers

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.trial import Trial

__all__ = ["ranks"]

_OUTLIER = 6.0  # estimated standard deviations
_LEAST_WORKERS = 3
_BAD = ("nan_count", "pos_inf_count", "neg_inf_count")
_MOST_COLOURS = 6  # more workers have thin grey lines
_OUTLIER_COLOUR = "#d55e00"


def ranks(trial: Trial, name: str, column: str, mode: str | None) -> RunFigure:
    """See Plots.ranks."""
    trial.tensor(name)  # raises TensorUnavailable
    of_mode = chosen_mode(modes_of(trial, [name]), mode)
    table = trial.compare_workers([name], column=column, mode=ModeKeys[of_mode])
    codes, texts = coded(table, "worker")
    workers = sorted({texts[code] for code in np.unique(codes).tolist()}, key=worker_order)
    what = f"{column} of {shown(name, 80)}"
    if len(workers) < 2:
        saved = f"only {workers[0]} has saved it" if workers else "no worker has statistics of it"
        return empty_figure(trial, what, f"there is nothing to compare: {saved}")
    values, steps = numbers(table, "value"), whole_numbers(table, "mode_step")
    bad, of_bad = _not_finite(trial, name, of_mode)
    outliers = _outliers(table, codes, texts) | of_bad
    if column not in _BAD:  # a statistic describes finite elements only: 0 for an L2 norm of NaN
        values = np.where(bad, np.nan, values)
    figure, (axes,) = new_figure(4.2)
    quiet = [COLOURS[at] for at in (0, 2, 3, 4, 5)] if outliers else list(COLOURS)
    few = len(workers) <= _MOST_COLOURS
    curves = []
    for at, worker in enumerate(sorted(workers, key=lambda each: each in outliers)):
        rows = np.flatnonzero(codes == texts.index(worker))
        differs = worker in outliers
        colour = _OUTLIER_COLOUR if differs else quiet[at % len(quiet)] if few else "#888888"
        label = f"{shown(worker)}{' (differs)' if differs else ''}"
        width = 2.2 if differs else 1.2 if few else 0.6
        curves.append(Curve(steps[rows], values[rows], colour, label, {"lw": width}))
    draw_panel(axes, curves, mode=of_mode, label=shown(column))
    add_legend(axes)
    note = _note(outliers)
    set_title(figure, trial, f"{what} on {len(workers)} workers by {of_mode} steps", note)
    return figure


def _outliers(table: pa.Table, codes: Any, texts: list[str]) -> dict[str, float]:
    """Workers that differ from the others, with their largest deviation."""
    deviations: npt.NDArray[np.float64] = np.abs(
        np.nan_to_num(numbers(table, "deviation"), posinf=1e9, neginf=-1e9)
    )
    far = np.flatnonzero((deviations >= _OUTLIER) & (whole_numbers(table, "alike") >= _LEAST_WORKERS))
    found: dict[str, float] = {}
    for row in far.tolist():
        worker = texts[codes[row]]
        found[worker] = max(found.get(worker, 0.0), float(deviations[row]))
    return found


def _not_finite(trial: Trial, name: str, mode: str) -> tuple[Any, dict[str, float]]:
    """Rows of compare_workers() with NaN or infinite elements; workers that alone have them, as outliers."""
    found: dict[str, float] = {}
    bad = np.zeros(0, dtype=np.bool_)
    for column in _BAD:
        table = trial.compare_workers([name], column=column, mode=ModeKeys[mode])
        some = numbers(table, "value") > 0
        bad = bad | some if bad.size else some
        alone = some & (numbers(table, "median") == 0) & (whole_numbers(table, "alike") >= _LEAST_WORKERS)
        workers = table.column("worker").take(np.flatnonzero(alone)).to_pylist()
        found.update(dict.fromkeys(workers, math.inf))
    return bad, found


def _note(outliers: dict[str, float]) -> str:
    if not outliers:
        return "no worker differs from the others"
    worst = sorted(outliers, key=lambda each: -outliers[each])[:3]
    size = [f"{shown(each)} ({_size(outliers[each])})" for each in worst]
    return f"differs from the median: {', '.join(size)}"


def _size(deviation: float) -> str:
    return f"{deviation:,.3g} deviations" if math.isfinite(deviation) else "NaN or infinite elements"
