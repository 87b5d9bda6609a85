"""The lists of tensors in collections.json: attempts before the newest one have differences."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tdcore.errors import RunCorrupt
from tdcore.format.collection_names import expand_names, shorten_names
from tdcore.trial import create_trial
from tests.trial.writer import RunWriter

NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True).map(sorted)
ENTRIES = st.dictionaries(
    st.sampled_from(["all", "weights"]),
    st.fixed_dictionaries({"tensor_names": NAMES, "included": st.booleans()}),
)
ATTEMPTS = st.lists(
    ENTRIES.map(lambda entries: {"collections": entries, "frozen": ["x"]}), min_size=1, max_size=4
).map(lambda documents: {str(number): document for number, document in enumerate(documents)})


@settings(max_examples=100, deadline=None)
@given(ATTEMPTS)
def test_the_lists_of_all_attempts_are_restored(attempts: dict[str, Any]) -> None:
    newest = str(len(attempts) - 1)
    stored = json.loads(json.dumps(shorten_names(attempts, newest)))
    assert expand_names(stored) == attempts
    assert stored[newest] == attempts[newest]


def test_fifty_attempts_with_equal_tensors_store_their_names_once() -> None:
    names = sorted(f"layer{at}.weight" for at in range(1000))
    document = {"collections": {"all": {"tensor_names": names}}}
    attempts = {str(number): document for number in range(50)}
    once, stored = (len(json.dumps(each)) for each in (document, shorten_names(attempts, "49")))
    assert stored < 1.5 * once
    assert expand_names(shorten_names(attempts, "49")) == attempts


def test_a_trial_reads_the_collections_of_each_attempt(tmp_path: Any) -> None:
    for attempt in (0, 1):
        run = RunWriter(tmp_path, attempt=attempt)
    attempts = {
        "0": {"collections": {"all": {"tensor_names": ["a", "b", "c"]}}},
        "1": {"collections": {"all": {"tensor_names": ["b", "c", "d"]}}},
    }
    run.put("collections.json", {"format": 1, "attempts": shorten_names(attempts, "1")})
    for attempt, names in ((0, "abc"), (1, "bcd")):
        trial = create_trial(tmp_path, attempt=attempt)
        assert trial.collection("all").tensor_names == frozenset(names)


@pytest.mark.parametrize("difference", [3, {}, {"attempt": 7}, {"attempt": 0}, {"attempt": 1, "added": [3]}])
def test_a_difference_from_a_missing_list_is_an_error(tmp_path: Any, difference: Any) -> None:
    run = RunWriter(tmp_path)
    attempts = {
        "0": {"collections": {"all": {"names_from": difference}}},
        "1": {"collections": {"all": {"tensor_names": ["a"]}}},
    }
    run.put("collections.json", {"format": 1, "attempts": attempts})
    with pytest.raises(RunCorrupt, match=r"collections\.json: names_from of collection 'all' in attempt 0"):
        create_trial(tmp_path).collections()
