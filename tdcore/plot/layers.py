"""Picture `layers`: heat map of one statistic, tensors in the order of the model by steps. Stateless."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tdcore.errors import ConfigError
from tdcore.plot.figures import (
    Axes,
    RunFigure,
    chosen_mode,
    edges_of,
    empty_figure,
    modes_of,
    new_figure,
    plain,
    rows_that_fit,
    set_title,
    shown,
    step_axis,
)
from tdcore.text.did_you_mean import did_you_mean
from tdcore.text.step_text import step_text
from tdcore.trial.view import patterns
from tdcore.view.answers.buckets import StepColumns, reduced
from tdcore.view.answers.frame import Frame, load_frame
from tdcore.view.answers.outlines import outlined_cells
from tdcore.view.answers.statistics import STATISTICS, Statistic
from tdcore.view.answers.stored_findings import stored_findings

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["layers"]

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_COLUMNS = 700  # pixels of the width
_ROW, _LOWEST, _HIGHEST = 0.17, 2.0, 10.0  # height in inches: of a row, of all rows
_LABEL_POINTS = 7.0
_MOST_DECADES = 15  # of the colour scale
_NAN, _INFINITE = "#d55e00", "#f0e442"  # neither is a colour of the scales
_ZERO = "#1b0022"  # on a logarithmic scale
_MOST_OUTLINES = 2000


def layers(trial: Trial, pattern: str, statistic: str, mode: str | None, worker: str) -> RunFigure:
    """See Plots.layers."""
    chosen = STATISTICS.get(statistic)
    if chosen is None:
        there = ", ".join(STATISTICS)
        raise ConfigError(f"statistic is {statistic!r}; use {there}{did_you_mean(statistic, STATISTICS)}")
    (test,) = patterns(pattern)
    names = [name for name in trial.in_model_order() if test.search(name)]
    of_mode = chosen_mode(modes_of(trial, names) if names else [], mode if names else None)
    what = f"{chosen.label}, tensors {shown(repr(pattern))}"
    if not names:
        reason = f"no tensor matches {pattern!r}" if trial.tensor_names() else "the run has no tensors"
        return empty_figure(trial, what, f"{reason}{_so_far(trial)}")
    frame = load_frame(trial, names, mode=of_mode, worker=worker, columns=chosen.columns)
    if not len(frame):
        return empty_figure(trial, what, f"worker {worker} has no rows of these tensors in mode {of_mode}")
    used = np.unique(frame.tensor)
    return _drawn(trial, frame, [names[row] for row in used.tolist()], used, chosen, of_mode, worker)


def _so_far(trial: Trial) -> str:
    return f"; {trial.open_hint}" if trial.open_hint else ""


def _drawn(
    trial: Trial, frame: Frame, names: list[str], used: Any, statistic: Statistic, mode: str, worker: str
) -> RunFigure:
    over = StepColumns.over(frame.steps, _COLUMNS)
    shape = (len(names), len(over))
    cell = np.searchsorted(used, frame.tensor) * len(over) + over.of_row
    means = reduced(frame.values(statistic), cell, shape[0] * shape[1]).mean.reshape(shape)
    nan, infinite = (_cells(cell, rows, shape) for rows in _bad_rows(frame))
    height = min(max(len(names) * _ROW, _LOWEST), _HIGHEST)
    figure, (axes,) = new_figure(height + 1.5)
    edges = edges_of(over.first, over.last)
    _draw_means(figure, axes, means, edges, statistic)
    _draw_bad(axes, nan, infinite, edges)
    outlined = _draw_outlines(trial, axes, names, mode, worker, over, edges)
    note = _draw_first_bad(trial, axes, frame, used, mode)
    _label_rows(axes, names, height)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(len(names) - 0.5, -0.5)
    step_axis(axes, mode)
    _add_key(axes, bool(nan.any()), bool(infinite.any()), outlined, bool(note))
    number = f"{len(names):,} tensor{'' if len(names) == 1 else 's'}"
    of_worker = f", {shown(worker)}" if worker else ""
    set_title(figure, trial, f"{statistic.label}; {number} by {mode} steps{of_worker}", note)
    return figure


def _bad_rows(frame: Frame) -> tuple[Mask, Mask]:
    """Rows with NaN, and with infinite elements."""
    columns = frame.columns
    return columns["nan_count"] > 0, (columns["pos_inf_count"] > 0) | (columns["neg_inf_count"] > 0)


def _cells(cell: Any, rows: Mask, shape: tuple[int, int]) -> Mask:
    there = np.zeros(shape[0] * shape[1], dtype=np.bool_)
    there[cell[rows]] = True
    return there.reshape(shape)


def _draw_means(figure: RunFigure, axes: Axes, means: Floats, edges: Floats, statistic: Statistic) -> None:
    import matplotlib

    norm = _scale(means, statistic)
    colours = matplotlib.colormaps["PuOr" if statistic.scale == "diverging" else "viridis"]
    drawn = means
    if statistic.scale == "log":
        colours = colours.with_extremes(under=_ZERO)
        drawn = np.where(means <= 0, norm.vmin / 10, means)  # below the scale: it has no zero
    rows = np.arange(len(means) + 1) - 0.5
    mesh = axes.pcolormesh(
        edges, rows, np.ma.masked_invalid(drawn), norm=norm, cmap=colours, rasterized=True, gid="means"
    )
    axes.set_facecolor("#d9d9d9")  # no value
    below = statistic.scale == "log" and bool((means <= 0).any())
    bar = figure.colorbar(
        mesh, ax=axes, extend="min" if below else "neither", pad=0.01, fraction=0.04, aspect=30, shrink=0.95
    )
    bar.set_label(statistic.label + (" (darkest: zero)" if below else ""))


def _scale(means: Floats, statistic: Statistic) -> Any:
    """The colour scale, from the smallest to the largest value."""
    from matplotlib.colors import LogNorm, Normalize

    finite = means[np.isfinite(means)]
    if statistic.scale == "share":
        return Normalize(0.0, 1.0)
    if statistic.scale == "log":
        positive = finite[finite > 0]
        most = float(positive.max()) if positive.size else 1.0
        least = max(float(positive.min()), most * 10.0**-_MOST_DECADES) if positive.size else 0.1
        return LogNorm(least, most) if least < most else LogNorm(most / 10, min(most * 10, 1e308))
    most = float(np.abs(finite).max(initial=0.0)) or 1.0
    return Normalize(-most, most)


def _draw_bad(axes: Axes, nan: Mask, infinite: Mask, edges: Floats) -> None:
    """Fill cells with NaN and infinite elements, and mark the first one of each row, which may be small."""
    from matplotlib.colors import ListedColormap

    rows = np.arange(len(nan) + 1) - 0.5
    for cells, colour, marker, name in (
        (infinite & ~nan, _INFINITE, "+", "infinite"),
        (nan, _NAN, "x", "nan"),
    ):
        if not cells.any():
            continue
        filled = np.ma.masked_where(~cells, cells.astype(np.float64))
        axes.pcolormesh(
            edges, rows, filled, cmap=ListedColormap([colour]), vmin=0, vmax=1, rasterized=True, gid=name
        )
        there = np.flatnonzero(cells.any(axis=1))
        if len(there) <= 60:
            first = cells[there].argmax(axis=1)
            middle = (edges[first] + edges[first + 1]) / 2
            axes.plot(middle, there, marker, color="black", ms=4, mew=0.9, ls="", clip_on=False)


def _draw_outlines(
    trial: Trial, axes: Axes, names: Sequence[str], mode: str, worker: str, over: StepColumns, edges: Floats
) -> bool:
    """Outline the cells of findings. Returns whether there are any."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    findings = stored_findings(trial.findings())
    outlined = islice(outlined_cells(findings, names, mode, worker, over), _MOST_OUTLINES)
    boxes = {(each.row, each.first, each.last) for each in outlined}
    patches = [
        Rectangle((edges[first], row - 0.5), edges[last + 1] - edges[first], 1.0)
        for row, first, last in sorted(boxes)
    ]
    for colour, width, name in (("black", 2.4, "halo"), ("white", 1.0, "findings")):
        axes.add_collection(
            PatchCollection(patches, facecolor="none", edgecolor=colour, linewidth=width, gid=name, zorder=3)
        )
    return bool(patches)


def _draw_first_bad(trial: Trial, axes: Axes, frame: Frame, used: Any, mode: str) -> str:
    """Mark the first tensor with NaN or infinite elements, in order of execution, and return it in words."""
    rows = np.flatnonzero(frame.bad)
    if not rows.size:
        return ""
    row = int(rows[np.lexsort([frame.seq[rows], frame.global_steps[rows]])[0]])
    place = int(np.searchsorted(used, frame.tensor[row]))
    axes.plot(
        [frame.steps[row]], [place], "o", ms=11, mfc="none", mec="black", mew=1.6, clip_on=False,
        gid="first_bad", zorder=4,
    )  # fmt: skip
    where = step_text(int(frame.global_steps[row]), mode, int(frame.steps[row]))
    return f"first NaN or infinite element: {shown(frame.names[int(frame.tensor[row])])} at {where}"


def _label_rows(axes: Axes, names: Sequence[str], height: float) -> None:
    """Label as many rows as fit. The common beginning of the names is the label of the axis."""
    common = _common_beginning(names)
    every = -(-len(names) // rows_that_fit(height, _LABEL_POINTS))
    rows = list(range(0, len(names), every))
    axes.set_yticks(rows)
    axes.set_yticklabels([shown(names[row][len(common) :]) for row in rows], fontsize=_LABEL_POINTS)
    for label in axes.get_yticklabels():
        plain(label)
    note = f" (1 in {every} labelled)" if every > 1 else ""
    plain(axes.set_ylabel(f"{shown(common) + '…' if common else ''}{note}" or " ", fontsize="small"))


def _common_beginning(names: Sequence[str]) -> str:
    """The beginning of all names, up to a separator."""
    first, last = min(names), max(names)
    length = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), 0)
    return first[: max(first.rfind(each, 0, length) for each in "/._") + 1]


def _add_key(axes: Axes, nan: bool, infinite: bool, outlined: bool, first: bool) -> None:
    """A legend for the colours and marks that occur."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        *([Patch(color=_NAN, label="NaN")] if nan else []),
        *([Patch(color=_INFINITE, label="infinite")] if infinite else []),
        *([Patch(facecolor="none", edgecolor="black", label="finding")] if outlined else []),
        *(
            [
                Line2D(
                    [],
                    [],
                    marker="o",
                    mfc="none",
                    mec="black",
                    mew=1.6,
                    ls="",
                    ms=8,
                    label="first bad tensor",
                )
            ]
            if first
            else []
        ),
    ]
    if handles:
        axes.figure.legend(
            handles=handles, loc="outside lower right", ncols=4, fontsize="small", frameon=False
        )
