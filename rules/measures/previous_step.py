"""Previous: what a tensor was at the saved step before, from window to window.

Any thread that owns the window.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.measures.series import groups
from tdcore.rules.window import Floats, Ints, Mask, Window

__all__ = ["LAYER", "StepPairs", "forget", "step_pairs"]

LAYER = ("attempt", "worker", "mode", "name", "call")  # what one tensor has in common at all its steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPairs:
    """Rows of a window, layer after layer, each beside the same tensor at the saved step before.

    rows: (n,). now, before: name of a column -> (n,) numbers. known: where there is a step before.
    """

    rows: Ints
    now: dict[str, Floats]
    before: dict[str, Floats]
    known: Mask


def step_pairs(window: Window, wanted: Mask, columns: Sequence[str], about: str) -> StepPairs:
    """The wanted rows with these number columns, now and before.

    about: names this question in the window's memory, where the newest numbers of every tensor are kept.
    """
    memory: dict[tuple[object, ...], npt.NDArray[np.float64]] = window.memory.setdefault(about, {})
    found = list(groups(window.columns, np.flatnonzero(wanted), *LAYER))
    rows = np.concatenate([group[-1] for group in found]) if found else np.empty(0, dtype=np.int64)
    now = {name: window.columns.floats(name)[rows] for name in columns}
    before = {name: np.roll(numbers, 1) for name, numbers in now.items()}
    known = np.ones(rows.size, dtype=np.bool_)
    sizes = np.array([group[-1].size for group in found], dtype=np.int64)
    ends = np.cumsum(sizes)
    firsts = ends - sizes
    newest = np.stack([numbers[ends - 1] for numbers in now.values()], axis=1)
    older = np.full_like(newest, np.nan)
    for number, (*parts, _) in enumerate(found):
        layer = tuple(parts)
        kept = memory.get(layer)
        if kept is None:
            known[firsts[number]] = False
        else:
            older[number] = kept
        memory[layer] = newest[number].copy()
    for numbers, first in zip(before.values(), older.T, strict=True):
        numbers[firsts] = first
    forget(window, memory)
    return StepPairs(rows=rows, now=now, before=before, known=known)


def forget(window: Window, kept: MutableMapping[Any, Any]) -> None:
    """Drops what is kept of workers that have ended. kept: by keys that begin with attempt and worker.

    So a run that starts again and again is not remembered as often.
    """
    for key in [key for key in kept if key[:2] in window.ended] if window.ended else ():
        del kept[key]
