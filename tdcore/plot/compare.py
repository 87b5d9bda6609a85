"""Picture `compare`: one tensor of two runs, aligned by the steps of each mode. Functions without state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tdcore.errors import ConfigError
from tdcore.plot.figures import (
    COLOURS,
    Axes,
    Curve,
    RunFigure,
    add_legend,
    draw_panel,
    empty_figure,
    modes_of,
    names_of_kind,
    new_figure,
    set_title,
    shown,
)
from tdcore.text.did_you_mean import did_you_mean
from tdcore.view.answers.frame import load_frame
from tdcore.view.answers.statistics import STATISTICS, Statistic

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["compare"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_RELATIVE, _ABSOLUTE = 1e-5, 1e-8  # tolerances of the rule SimilarAcrossRuns
_SINGLE_NUMBERS = frozenset({"loss", "metric", "scalar", "hyperparameter"})
_STYLES = ("-", "--")


def compare(trial: Trial, other: Trial, name: str | None, statistic: str | None) -> RunFigure:
    """See Plots.compare."""
    what = f"compared with {shown(other.name)}"
    if name is None:
        there = set(names_of_kind(other, "loss"))
        name = next((each for each in names_of_kind(trial, "loss") if each in there), None)
        if name is None:
            return empty_figure(trial, what, "the runs have no common loss; set name=")
    trial.tensor(name)  # raises TensorUnavailable
    other.tensor(name)
    single = name in names_of_kind(trial, *_SINGLE_NUMBERS)
    chosen = STATISTICS.get(statistic or ("mean" if single else "l2"))
    if chosen is None:
        hint = did_you_mean(str(statistic), STATISTICS)
        raise ConfigError(f"statistic is {statistic!r}; use {', '.join(STATISTICS)}{hint}")
    both = set(modes_of(other, [name]))
    modes = [mode for mode in modes_of(trial, [name]) if mode in both]
    if not modes:
        return empty_figure(trial, what, f"the runs have no rows of {name} in the same mode")
    figure, parts = new_figure(1.2 + 2.8 * len(modes), len(modes))
    notes = [_draw(axes, trial, other, name, chosen, mode) for axes, mode in zip(parts, modes, strict=True)]
    set_title(figure, trial, f"{what}, {chosen.label} of {shown(name)}", "; ".join(notes))
    return figure


def _draw(axes: Axes, trial: Trial, other: Trial, name: str, statistic: Statistic, mode: str) -> str:
    """Draw both runs in one mode, and return in words from which step they differ."""
    curves = [_curve(run, name, statistic, mode) for run in (trial, other)]
    labels = [shown(trial.name), shown(other.name)]
    if labels[0] == labels[1]:
        labels = [shown(trial.path), shown(other.path)]
    drawn = [
        Curve(*curve, colour, label, {"ls": style})
        for curve, colour, label, style in zip(curves, COLOURS, labels, _STYLES, strict=False)
    ]
    draw_panel(axes, drawn, mode=mode, label=statistic.label)
    parting, compared = _parting(*curves)
    if parting is not None:
        axes.axvline(parting, color="black", lw=1, ls=":", label=f"differ from step {parting}", gid="parting")
    add_legend(axes)
    if parting is not None:
        return f"{mode}: they differ from step {parting}"
    return f"{mode}: equal at all {compared:,} common steps" if compared else f"{mode}: no common step"


def _curve(trial: Trial, name: str, statistic: Statistic, mode: str) -> tuple[Ints, Floats]:
    """Steps and values; NaN at steps with NaN or infinite elements. A step has the mean of its calls."""
    frame = load_frame(trial, [name], mode=mode, worker="", columns=statistic.columns)
    rows = np.flatnonzero(frame.counted)
    values = np.where(frame.bad, np.nan, frame.values(statistic))[rows]
    steps, place = np.unique(frame.steps[rows], return_inverse=True)
    place = place.reshape(-1)
    return steps, np.bincount(place, weights=values) / np.bincount(place)


def _parting(one: tuple[Ints, Floats], other: tuple[Ints, Floats]) -> tuple[int | None, int]:
    """First common step with different values, and the number of common steps."""
    steps, mine, theirs = np.intersect1d(one[0], other[0], return_indices=True)
    same = np.isclose(one[1][mine], other[1][theirs], rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
    differs = np.flatnonzero(~same)
    return (int(steps[differs[0]]) if differs.size else None), len(steps)
