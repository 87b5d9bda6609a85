"""Picture `histogram`: the stored histogram of a tensor over the steps. Functions without state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tdcore.plot.figures import (
    COLOURS,
    RunFigure,
    chosen_mode,
    edges_of,
    empty_figure,
    modes_of,
    new_figure,
    set_title,
    shown,
    step_axis,
)
from tdcore.rules.measures.histogram import Histograms
from tdcore.view.answers.buckets import StepColumns
from tdcore.view.answers.frame import Frame, load_frame

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["histogram"]

Floats = npt.NDArray[np.float64]

_COLUMNS = 700  # pixels of the width


def histogram(trial: Trial, name: str, mode: str | None, worker: str) -> RunFigure:
    """See Plots.histogram."""
    trial.tensor(name)  # raises TensorUnavailable
    of_mode = chosen_mode(modes_of(trial, [name]), mode)
    every = load_frame(
        trial,
        [name],
        mode=of_mode,
        worker=worker,
        columns=("zero_count",),
        more=("log2_first", "log2_counts"),
    )
    frame = every.taken(np.flatnonzero(every.counted & (every.columns["count"] > 0)))
    if not len(frame):
        return empty_figure(trial, shown(name), f"the tensor has no statistics in mode {of_mode}")
    over = StepColumns.over(frame.steps, _COLUMNS)
    shares, exponents, zeros, bad = _shares(frame, over)
    odd = [each for each in (("zero", zeros), ("NaN or infinite", bad)) if each[1].any()]
    figure, parts = new_figure(
        5.4 if odd else 4.2,
        1 + bool(odd),
        sharex=True,
        gridspec_kw={"height_ratios": [4, 1] if odd else [1]},
    )
    _draw(figure, parts[0], shares, exponents, edges_of(over.first, over.last))
    for at, (label, share) in enumerate(odd):
        parts[1].plot(
            over.first, share, color=COLOURS[at], label=label, marker="." if len(over) < 40 else None
        )
    if odd:
        parts[1].set_ylim(-0.03, 1.03)
        parts[1].set_ylabel("share")
        parts[1].grid(alpha=0.3)
        parts[1].legend(loc="best", fontsize="small", frameon=False)
    step_axis(parts[-1], of_mode)
    of_worker = f", {shown(worker)}" if worker else ""
    set_title(figure, trial, f"{shown(name, 80)}, magnitudes by {of_mode} steps{of_worker}")
    return figure


def _shares(frame: Frame, over: StepColumns) -> tuple[Floats, Any, Floats, Floats]:
    """Share of the elements by exponent and column; the exponents; the shares of zeros and bad elements."""
    histograms = Histograms.of(frame.table, np.arange(len(frame)))
    columns = len(over)
    first = int(histograms.exponent.min(initial=23))
    bins = max(1, int(histograms.exponent.max(initial=first)) - first + 1)
    column = np.repeat(over.of_row, np.diff(histograms.ends, prepend=0))
    counts = np.bincount(
        (histograms.exponent - first) * columns + column, weights=histograms.count, minlength=bins * columns
    ).reshape(bins, columns)
    total, zeros, bad = (
        np.bincount(over.of_row, weights=each, minlength=columns)
        for each in (
            frame.columns["count"],
            frame.columns["zero_count"],
            frame.columns["count"] - frame.finite,
        )
    )
    return counts / total, first + np.arange(bins), zeros / total, bad / total


def _draw(figure: RunFigure, axes: Any, shares: Floats, exponents: Any, edges: Floats) -> None:
    import matplotlib

    colours = matplotlib.colormaps["viridis"].copy()
    axes.set_facecolor("#d9d9d9")  # no elements
    mesh = axes.pcolormesh(
        edges,
        2.0 ** np.append(exponents, exponents[-1] + 1),
        np.ma.masked_equal(shares, 0.0),
        cmap=colours,
        vmin=0.0,
        vmax=max(float(shares.max(initial=0.0)), 1e-12),
        rasterized=True,
        gid="shares",
    )
    axes.set_yscale("log")
    axes.set_ylabel("magnitude")
    figure.colorbar(mesh, ax=axes, pad=0.01, fraction=0.04, label="share of the elements")
