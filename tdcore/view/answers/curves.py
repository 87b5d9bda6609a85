"""Curves: the histories of single numbers, such as losses. Functions without state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tdcore.modes import ModeKeys
from tdcore.view.answers.arrow import coded, is_in, numbers, whole_numbers
from tdcore.view.answers.buckets import Floats, Ints, StepColumns, points, reduced
from tdcore.view.answers.frame import step_range
from tdcore.view.answers.packing import Packed, pack_doubles

if TYPE_CHECKING:
    from tdcore.view.answers.opened import OpenRun

__all__ = ["MOST_CURVES", "curves", "ends_of"]

_COLUMNS = ("name", "mode", "mode_step", "step", "mean", "nan_count", "pos_inf_count", "neg_inf_count")
MOST_CURVES = 60


def curves(
    run: OpenRun,
    names: Sequence[str],
    columns: int,
    *,
    mode: str = "",
    steps: tuple[int | None, int | None] = (None, None),
) -> list[dict[str, Any]]:
    """`Curve` of the contract for each tensor and mode, of all workers together.

    A curve has the mean of the finite elements. At most 60 curves are returned.

    Args:
        run: The run.
        names: Names of the tensors.
        columns: Maximum number of columns.
        mode: Only this mode; "": all modes.
        steps: First and last step of the mode, or global step for all modes; None for no limit.
    """
    if not names:
        return []
    table = run.trial.stats(
        list(names), columns=_COLUMNS, mode=ModeKeys[mode] if mode else None, steps=step_range(steps)
    )
    name, texts = coded(table, "name")
    of_mode, modes = coded(table, "mode")
    means, mode_steps = numbers(table, "mean"), whole_numbers(table, "mode_step")
    global_steps = numbers(table, "step")
    with np.errstate(invalid="ignore"):
        bad = np.sum([numbers(table, each) for each in _COLUMNS[5:]], axis=0) > 0
    counted = ~np.isnan(numbers(table, "nan_count"))
    key = np.where(counted, name * len(modes) + of_mode, -1)
    found: list[dict[str, Any]] = []
    codes = {text: code for code, text in enumerate(texts)}
    for text in names:
        for each in ModeKeys:
            if text not in codes or each.name not in modes or len(found) == MOST_CURVES:
                continue
            rows = np.flatnonzero(key == codes[text] * len(modes) + modes.index(each.name))
            if rows.size:
                found.append(
                    {
                        "name": text,
                        "mode": each.name,
                        "worker": "",
                        "points": points(mode_steps[rows], means[rows], columns, bad=bad[rows]),
                        "global_step": _first_global_steps(mode_steps[rows], global_steps[rows], columns),
                    }
                )
    return found


def _first_global_steps(steps: Ints, global_steps: Floats, columns: int) -> Packed:
    """The global step of the first step of each column."""
    over = StepColumns.over(steps, columns)
    return pack_doubles(reduced(global_steps, over.of_row, len(over)).min)


def ends_of(run: OpenRun, name: str, mode: str) -> tuple[float, float, float] | None:
    """The first, the last and the smallest finite value of a loss in one mode; None without a finite value.

    The first and the last value are means of the workers at one step.
    """
    table = run.trial.stats([name], mode=ModeKeys[mode], columns=_COLUMNS)
    codes, texts = coded(table, "mode")
    means, steps = numbers(table, "mean"), whole_numbers(table, "mode_step")
    good = np.flatnonzero(np.isfinite(means) & is_in(codes, texts, (mode,)))
    if not good.size:
        return None
    means, steps = means[good], steps[good]
    first, last = (float(means[steps == each].mean()) for each in (steps.min(), steps.max()))
    return first, last, float(means.min())
