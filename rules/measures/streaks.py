"""Streaks: numbers of consecutive saved steps at which a condition held for a tensor, also across windows.

Threads: the thread that owns the window.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tdcore.rules.columns import Mask
from tdcore.rules.measures.previous_step import LAYER, forget
from tdcore.rules.measures.series import groups
from tdcore.rules.window import Window

__all__ = ["streaks"]

Ints = npt.NDArray[np.int64]


def streaks(window: Window, judged: Mask, hit: Mask, about: str) -> Ints:
    """Per row of the window, the number of consecutive hits that end there; 0 if the row is not a hit.

    A tensor is identified by attempt, worker, mode, name and call.

    Args:
        window: The window. Streaks that have not ended are stored in its memory.
        judged: Rows that continue or end a streak. Other rows have no effect.
        hit: The judged rows for which the condition holds.
        about: Name of the condition, the key in the memory.
    """
    columns = window.columns
    memory: dict[tuple[object, ...], int] = window.memory.setdefault(about, {})
    length = np.zeros(len(window), dtype=np.int64)
    hit = hit & judged
    if not memory and not hit.any():
        return length
    codes, texts = columns.codes("name")
    running = {key[3] for key in memory}
    in_play = np.array([text in running for text in texts], dtype=np.bool_)
    in_play[codes[hit]] = True
    for *parts, group in groups(columns, np.flatnonzero(judged & in_play[codes]), *LAYER):
        key = tuple(parts)
        hits = hit[group]
        so_far = np.cumsum(hits)
        run = so_far - np.maximum.accumulate(np.where(hits, -memory.get(key, 0), so_far))
        length[group] = run
        if run[-1]:
            memory[key] = int(run[-1])
        else:
            memory.pop(key, None)
    forget(window, memory)
    return length
