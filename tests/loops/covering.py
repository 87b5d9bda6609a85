"""Selects few loops of a sequence that have all pairs of values of the whole sequence."""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Callable
from itertools import combinations

from tests.loops.generator import Loop

__all__ = ["covering", "pairs"]

Value = tuple[str, object]


def pairs(loop: Loop) -> frozenset[tuple[Value, Value]]:
    """Return the pairs of values of two fields. Lists count with their lengths, kinds and order."""
    fields: dict[str, object] = {field.name: getattr(loop, field.name) for field in dataclasses.fields(loop)}
    for name in ("roots", "register", "seed"):
        del fields[name]
    fields |= {"number of roots": len(loop.roots), "registered": len(loop.register)}
    fields |= {f"has {kind}": True for kind in loop.roots}
    fields["in order"] = list(loop.register) == sorted(loop.register)
    return frozenset(combinations(sorted(fields.items(), key=lambda field: field[0]), 2))


def covering(make: Callable[[int], Loop], among: int, first: int, times: int) -> list[int]:
    """Select loops so that these and the first loops have each pair of values; the largest gain comes first.

    Args:
        make: Returns the loop of a number.
        among: Number of loops from which to select. Each pair that one of them has is wanted.
        first: Number of loops at the beginning that count and are not selected.
        times: Number of loops that have a pair. If fewer loops have it, all of them are selected.
    """
    of_loop = [pairs(make(number)) for number in range(among)]
    had = Counter(pair for each in of_loop[:first] for pair in each)
    left = Counter(pair for each in of_loop[first:] for pair in each)
    missing = {pair: min(count, times - had[pair]) for pair, count in left.items() if had[pair] < times}
    # Gains only fall: a gain that is the largest after it has been counted again is the largest of all.
    gains = [(-len(of_loop[number]), number) for number in range(first, among)]
    heapq.heapify(gains)
    selected = []
    while missing:
        _, number = heapq.heappop(gains)
        gained = [pair for pair in of_loop[number] if pair in missing]
        if gains and -len(gained) > gains[0][0]:
            heapq.heappush(gains, (-len(gained), number))
            continue
        selected.append(number)
        for pair in gained:
            missing[pair] -= 1
            if not missing[pair]:
                del missing[pair]
    return selected
