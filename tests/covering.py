"""Selects few of many generated cases that have all pairs of values of the many."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

__all__ = ["Pairs", "covering", "pairs"]

Pairs = frozenset[tuple[tuple[str, object], tuple[str, object]]]


def pairs(values: Mapping[str, object]) -> Pairs:
    """Return the pairs of a case's values, each with the name of its field."""
    return frozenset(combinations(sorted(values.items(), key=lambda value: value[0]), 2))


def covering(cases: Sequence[Pairs], *, first: int = 0, times: int = 1, most: int | None = None) -> list[int]:
    """Select cases so that these and the first cases have every pair; the largest gain comes first.

    Args:
        cases: Pairs of each case. Each pair that one of them has is wanted.
        first: Number of cases at the beginning that count and are not selected.
        times: Number of cases that have a pair. If fewer cases have it, all of them are selected.
        most: Maximum number of selected cases. Some pairs may then be missing.

    Returns:
        Positions in `cases`.
    """
    had = Counter(pair for case in cases[:first] for pair in case)
    left = Counter(pair for case in cases[first:] for pair in case)
    missing = {pair: min(count, times - had[pair]) for pair, count in left.items() if had[pair] < times}
    # Gains only fall: a gain that is the largest after it has been counted again is the largest of all.
    gains = [(-len(cases[at]), at) for at in range(first, len(cases))]
    heapq.heapify(gains)
    selected: list[int] = []
    while missing and len(selected) != most:
        _, at = heapq.heappop(gains)
        gained = [pair for pair in cases[at] if pair in missing]
        if gains and -len(gained) > gains[0][0]:
            heapq.heappush(gains, (-len(gained), at))
            continue
        selected.append(at)
        for pair in gained:
            missing[pair] -= 1
            if not missing[pair]:
                del missing[pair]
    return selected
