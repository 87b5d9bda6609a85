"""Picture `loss`: losses over the steps, one panel for each mode. Functions without state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tdcore.plot.figures import (
    COLOURS,
    RunFigure,
    add_legend,
    draw_curve,
    empty_figure,
    log_if_positive,
    modes_of,
    new_figure,
    plain,
    set_title,
    shown,
    step_axis,
)
from tdcore.view.answers.frame import load_frame
from tdcore.view.answers.statistics import COMMON

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["loss", "names_of_kind"]

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
        for at, name in enumerate(names):
            rows = np.flatnonzero((frame.tensor == at) & frame.counted)
            if rows.size:
                draw_curve(
                    axes,
                    frame.steps[rows],
                    values[rows],
                    colour=COLOURS[at % len(COLOURS)],
                    label=shown(name),
                )
        log_if_positive(axes, [values])
        step_axis(axes, mode)
        plain(axes.set_ylabel("loss"))
        axes.grid(alpha=0.3)
        add_legend(axes)
    set_title(figure, trial, f"loss by steps of {' and '.join(modes)}")
    return figure


def names_of_kind(trial: Trial, *kinds: str) -> list[str]:
    """Names of the tensors of these kinds, in the order of the model."""
    column = trial.rows(kinds=kinds, columns=["name"]).column("name").unify_dictionaries()
    return trial.in_model_order(column.unique().to_pylist())
