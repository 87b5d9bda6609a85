"""Streaks: for how many saved steps in a row something has held of a tensor, from window to window.

Any thread that owns the window.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tdcore.rules.measures.previous_step import LAYER, forget
from tdcore.rules.measures.series import groups
from tdcore.rules.window import Mask, Window

__all__ = ["streaks"]

Ints = npt.NDArray[np.int64]


def streaks(window: Window, judged: Mask, hit: Mask, about: str) -> Ints:
    """Per row of the window, the length of the row of hits that ends there; 0 where it is none.

    judged: rows that continue or break a streak; the others do neither. hit: among them, where it holds.
    about: names the condition in the window's memory, where streaks that go on are kept. A tensor is followed
    by attempt, worker, mode, name and call.
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
