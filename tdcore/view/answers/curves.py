"""Curves: the histories of single numbers, such as losses. Functions without state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tdcore.modes import ModeKeys
from tdcore.view.answers.arrow import coded, numbers, whole_numbers
from tdcore.view.answers.buckets import points

if TYPE_CHECKING:
    from tdcore.view.answers.opened import OpenRun

__all__ = ["curves"]

_COLUMNS = ("name", "mode", "mode_step", "mean", "nan_count", "pos_inf_count", "neg_inf_count")
_MOST = 60


def curves(run: OpenRun, names: Sequence[str], columns: int) -> list[dict[str, Any]]:
    """`Curve` of the contract for each tensor and mode, of all workers together.

    A curve has the mean of the finite elements. At most 60 curves are returned.
    """
    if not names:
        return []
    table = run.trial.stats(list(names), columns=_COLUMNS)
    name, texts = coded(table, "name")
    mode, modes = coded(table, "mode")
    means, steps = numbers(table, "mean"), whole_numbers(table, "mode_step")
    with np.errstate(invalid="ignore"):
        bad = np.sum([numbers(table, each) for each in _COLUMNS[4:]], axis=0) > 0
    counted = ~np.isnan(numbers(table, "nan_count"))
    key = np.where(counted, name * len(modes) + mode, -1)
    found: list[dict[str, Any]] = []
    codes = {text: code for code, text in enumerate(texts)}
    for text in names:
        for each in ModeKeys:
            if text not in codes or each.name not in modes or len(found) == _MOST:
                continue
            rows = np.flatnonzero(key == codes[text] * len(modes) + modes.index(each.name))
            if rows.size:
                found.append(
                    {
                        "name": text,
                        "mode": each.name,
                        "worker": "",
                        "points": points(steps[rows], means[rows], columns, bad=bad[rows]),
                    }
                )
    return found
