"""step_pairs: numbers of each tensor at a step and at its previous saved step, also across windows.

Threads: the thread that owns the window.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.columns import Floats, Ints, Mask
from tdcore.rules.measures.series import groups
from tdcore.rules.window import Window

__all__ = ["LAYER", "StepPairs", "forget", "step_pairs"]

LAYER = ("attempt", "worker", "mode", "name", "call")  # identifies one tensor at all its steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPairs:
    """Rows of a window, grouped by layer, each with the same tensor at the previous saved step.

    Attributes:
        rows: Shape (n,).
        now, before: Name of a column -> its numbers at this step and at the previous step, shape (n,).
        known: Whether there is a previous step.
    """

    rows: Ints
    now: dict[str, Floats]
    before: dict[str, Floats]
    known: Mask


def step_pairs(window: Window, wanted: Mask, columns: Sequence[str], about: str) -> StepPairs:
    """The wanted rows with these number columns, now and at the previous step.

    about: key in the window's memory for the newest numbers of every tensor.
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
    """Remove the entries of workers that have ended. The keys of `kept` begin with attempt and worker.

    This keeps the memory from growing with the number of restarts of a run.
    """
    for key in [key for key in kept if key[:2] in window.ended] if window.ended else ():
        del kept[key]
