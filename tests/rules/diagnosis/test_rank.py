"""The ranking of causes: by-products are merged into their cause, and advice is free of contradictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.rules.diagnosis import CAUSES, Evidence
from tdcore.rules.diagnosis.diagnosis import MOST, rank
from tdcore.rules.diagnosis.evidence import confidence
from tdcore.rules.diagnosis.facts import Facts

NOTHING = Facts(histories={}, absent={})


def ranked(strengths: dict[str, float]) -> list[str]:
    """Return the names of the causes, ranked for evidence of these strengths."""

    def sign_of(name: str) -> Callable[[Facts], Iterator[Evidence]]:
        seen = [Evidence(why="seen", strength=strengths[name])] if name in strengths else []
        return lambda facts: iter(seen)

    planted = {name: replace(cause, sign=sign_of(name)) for name, cause in CAUSES.items()}
    return [found.cause for found in rank(NOTHING, planted)]


def test_every_name_in_the_table_is_a_cause() -> None:
    for cause in CAUSES.values():
        assert set(cause.explains) | set(cause.excludes) <= set(CAUSES)
        assert cause.name not in cause.explains
        assert cause.change
        assert cause.check


def test_without_evidence_there_is_no_cause() -> None:
    assert ranked({}) == []
    assert rank(NOTHING) == ()


def test_a_by_product_is_folded_into_its_cause() -> None:
    found = ranked({"inputs hold NaN": 0.95, "exploding gradients": 0.95})
    assert found == ["inputs hold NaN"]


def test_weak_evidence_does_not_explain_strong_evidence() -> None:
    found = ranked({"weights start too large": 0.5, "learning rate too high": 0.95})
    assert found[0] == "learning rate too high"


@given(
    st.dictionaries(
        st.sampled_from(sorted(CAUSES)),
        st.sampled_from([0.5, 0.6, 0.75, 0.85, 0.9, 0.95]),
        max_size=len(CAUSES),
    )
)
def test_no_two_causes_contradict_each_other_and_something_is_always_given(
    strengths: dict[str, float],
) -> None:
    found = ranked(strengths)
    assert len(found) <= MOST
    assert bool(found) == bool(strengths)
    for name in found:
        assert not set(CAUSES[name].excludes) & set(found)


@pytest.mark.parametrize(("strength", "words"), [(1.0, "certain"), (0.8, "likely"), (0.5, "possible")])
def test_confidence_is_given_in_words(strength: float, words: str) -> None:
    assert confidence(strength) == words
