"""Picture `loss`: losses over the steps, one panel for each mode. Functions without state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tdcore.plot.figures import (
    COLOURS,
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
from tdcore.view.answers.frame import load_frame
from tdcore.view.answers.statistics import COMMON

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["loss"]

_MOST = 60  # curves


def loss(trial: Trial) -> RunFigure:
    """See Plots.loss."""
    names = names_of_kind(trial, "loss")[:_MOST]
    if not names:
        hint = f"; {trial.open_hint}" if trial.open_hint else ""
        reason = "the run has no losses: hook.register_loss() or save_scalar() records them"
        return empty_figure(trial, "loss", f"{reason}{hint}")
    modes = modes_of(trial, names)
    figure, parts = new_figure(1.0 + 2.6 * len(modes), len(modes))
    statistic = COMMON["mean"]
    for axes, mode in zip(parts, modes, strict=True):
        frame = load_frame(trial, names, mode=mode, worker="", columns=statistic.columns)
        values = np.where(frame.bad, np.nan, frame.values(statistic))
        rows = [np.flatnonzero((frame.tensor == at) & frame.counted) for at in range(len(names))]
        curves = [
            Curve(frame.steps[mine], values[mine], COLOURS[at % len(COLOURS)], shown(names[at]))
            for at, mine in enumerate(rows)
            if mine.size
        ]
        draw_panel(axes, curves, mode=mode, label="loss")
        add_legend(axes)
    set_title(figure, trial, f"loss by steps of {' and '.join(modes)}")
    return figure
