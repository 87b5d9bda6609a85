"""Patterns from run files are matched in bounded time; patterns from the user with `re`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tdcore.format.run_patterns import RunPatterns
from tdcore.rules import AllZero
from tdcore.rules import run as run_rules
from tdcore.trial import create_trial
from tests.trial.writer import RunWriter

pytestmark = pytest.mark.timeout(60)

SLOW = "(a+)+$"  # `re` takes years for the name below
NAME = "a" * 60 + "!"


def write_run(
    root: Path, regex: str, listed: list[str] | None = None, rules: list[str] | None = None
) -> Path:
    run = RunWriter(root)
    for step in (0, 1, 2):
        for name in (NAME, "fc.weight"):
            run.add(name, np.zeros(4), step=step, kind="output")
    run.flush()
    entry = {"include_regex": [regex], "tensor_names": listed or [], "included": True}
    run.put("collections.json", {"format": 1, "attempts": {"0": {"collections": {"mine": entry}}}})
    run.end(last_step=2)
    if rules is not None:
        document = json.loads((root / "run.json").read_text())
        document["attempts"][-1]["configuration"] = {"rules": rules}
        (root / "run.json").write_text(json.dumps(document))
    return root


def test_a_pattern_of_a_collection_that_takes_years_is_searched_at_once(tmp_path: Path) -> None:
    trial = create_trial(write_run(tmp_path, SLOW))
    assert trial.tensor_names(collection="mine") == []
    assert not trial.collection("mine").belongs(NAME, "output")


def test_a_rule_judges_a_collection_with_such_a_pattern(tmp_path: Path) -> None:
    report = run_rules(write_run(tmp_path, f"{SLOW}|weight"), [AllZero(collection_names="mine")])
    assert {finding.tensor for finding in report.findings} == {"fc.weight"}


def test_such_a_pattern_in_a_rule_that_the_run_names_is_searched_at_once(tmp_path: Path) -> None:
    report = run_rules(write_run(tmp_path, "x", rules=[f"all_zero:tensor_regex={SLOW}|weight"]))
    assert {finding.tensor for finding in report.findings} == {"fc.weight"}


def test_a_pattern_with_look_around_goes_by_the_names_that_the_run_lists_and_says_so(tmp_path: Path) -> None:
    trial = create_trial(write_run(tmp_path, "^(?!a)", listed=["fc.weight"]))
    assert trial.tensor_names(collection="mine") == ["fc.weight"]
    (remark,) = trial.patterns.remarks()
    assert "'^(?!a)' is not searched with (Invalid regular expression: invalid perl operator: (?!)" in remark
    report = run_rules(tmp_path, [AllZero(collection_names="mine")])
    assert {finding.tensor for finding in report.findings} == {"fc.weight"}
    assert any("'^(?!a)' is not searched with" in problem for problem in report.problems)


def test_a_rule_of_the_run_with_look_around_is_an_error_of_that_rule_only(tmp_path: Path) -> None:
    root = write_run(tmp_path, "x", rules=["all_zero:tensor_regex=(?!a)f", "all_zero:tensor_regex=."])
    first, second = run_rules(root).verdicts
    assert "comes from the run, and is not used" in first.reason
    assert second.finding_count == 2


def test_patterns_that_the_user_types_keep_look_around(tmp_path: Path) -> None:
    root = write_run(tmp_path, "x")
    assert create_trial(root).tensor_names(regex="^(?!a)") == ["fc.weight"]
    report = run_rules(root, ["all_zero:tensor_regex=^(?!a)"])
    assert {finding.tensor for finding in report.findings} == {"fc.weight"}


@pytest.mark.parametrize("pattern", ["(", "(" * 60_000, "x" * 70_000, "\udc80", "[z-a]"])
def test_a_pattern_that_is_none_or_too_long_is_refused(tmp_path: Path, pattern: str) -> None:
    trial = create_trial(write_run(tmp_path, pattern, listed=["fc.weight"]))
    assert trial.tensor_names(collection="mine") == ["fc.weight"]
    (remark,) = trial.patterns.remarks()
    assert len(remark) < 1000


def test_a_pattern_that_takes_long_to_compile_with_re_is_not_compiled_with_it(tmp_path: Path) -> None:
    trial = create_trial(write_run(tmp_path, "(?i)[\x00-\uffff]" * 4000, listed=["fc.weight"]))
    assert trial.tensor_names(collection="mine") == ["fc.weight"]


def test_rules_of_a_run_with_very_long_text_are_left_out(tmp_path: Path) -> None:
    root = write_run(tmp_path, "x", rules=["all_zero", "all_zero:tensor_regex=" + "(?i)[\x00-\uffff]" * 4000])
    report = run_rules(root)
    assert len(report.verdicts) == 1
    assert any("more than 16,384 characters" in each for each in report.left_out)


def test_all_patterns_of_a_run_together_have_so_much_time() -> None:
    times = iter([0.0, 3.0, 3.0, 7.0])
    patterns = RunPatterns(seconds=5.0, clock=lambda: next(times))
    assert patterns.search("a", ["a", "b"]) == ["a"]
    assert patterns.search("b", ["a", "b"]) == ["b"]
    assert patterns.search("c", ["c"]) == []
    assert patterns.refused == {"c": "the patterns of this run take too long"}


def test_many_names_are_searched_in_their_order() -> None:
    names = [f"layer{number}.{'weight' if number % 3 else 'bias'}" for number in range(20_000)]
    assert RunPatterns().search("bias$", names) == names[::3]
