"""Intervals behave like a set of numbers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.trial.intervals import Intervals

_RANGE = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@settings(deadline=None)
@given(st.lists(_RANGE, max_size=15), _RANGE)
def test_intervals_are_a_set_of_numbers(ranges: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    intervals, numbers = Intervals(), set[int]()
    for first, last in ranges:
        intervals.add(first, last)
        numbers |= set(range(first, last + 1))
    missing = [n for low, high in intervals.missing(*asked) for n in range(low, high + 1)]
    assert missing == [n for n in range(asked[0], asked[1] + 1) if n not in numbers]
    present = [n for low, high in intervals.present(*asked) for n in range(low, high + 1)]
    assert present == [n for n in range(asked[0], asked[1] + 1) if n in numbers]
    assert intervals.end == max(numbers, default=-1) + 1
    holes = {n for low, high in intervals.holes() for n in range(low, high + 1)}
    assert holes == set(range(intervals.end)) - numbers
