"""Cases that are selected because together they have all pairs of values."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.covering import Pairs, covering, pairs

CASES = st.lists(
    st.fixed_dictionaries({name: st.integers(0, 2) for name in "abcd"}).map(pairs), min_size=1, max_size=30
)


@given(cases=CASES, first=st.integers(0, 5), times=st.integers(1, 3))
def test_selected_cases_have_each_pair_as_often_as_wanted_and_each_adds_one(
    cases: list[Pairs], first: int, times: int
) -> None:
    selected = covering(cases, first=first, times=times)
    everywhere = Counter(pair for case in cases for pair in case)
    ran = Counter(pair for case in cases[:first] for pair in case)
    for at in selected:
        assert at >= first
        assert any(ran[pair] < times for pair in cases[at])
        ran.update(cases[at])
    assert len(set(selected)) == len(selected)
    assert {pair: min(count, times) for pair, count in everywhere.items()} == {
        pair: min(count, times) for pair, count in ran.items()
    }


@given(cases=CASES, most=st.integers(0, 5))
def test_a_maximum_gives_the_beginning_of_the_selection(cases: list[Pairs], most: int) -> None:
    assert covering(cases, most=most) == covering(cases)[:most]
