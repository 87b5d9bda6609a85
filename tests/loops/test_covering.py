"""Loops that are selected because together they have all pairs of values."""

from __future__ import annotations

from collections import Counter
from functools import partial

from tests.loops.covering import covering, pairs
from tests.loops.generator import random_loop

_AMONG, _FIRST, _TIMES = 300, 40, 2


def test_selected_loops_have_each_pair_as_often_as_wanted_and_none_is_superfluous() -> None:
    make = partial(random_loop, 0)
    selected = covering(make, _AMONG, _FIRST, _TIMES)
    assert len(set(selected)) == len(selected) < _AMONG - _FIRST
    assert min(selected) >= _FIRST
    everywhere = Counter(pair for number in range(_AMONG) for pair in pairs(make(number)))
    ran = Counter(pair for number in (*range(_FIRST), *selected) for pair in pairs(make(number)))
    assert {pair: min(count, _TIMES) for pair, count in everywhere.items()} == {
        pair: min(count, _TIMES) for pair, count in ran.items()
    }
    last = pairs(make(selected[-1]))
    assert any(ran[pair] <= _TIMES for pair in last)


def test_without_new_pairs_no_loop_is_selected() -> None:
    assert covering(lambda number: random_loop(0, number % 5), 50, 5, 1) == []
