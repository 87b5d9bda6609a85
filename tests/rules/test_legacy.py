"""Rules in the style of smdebug, alone and under the engine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tdcore.errors import ConfigError, RuleEvaluationConditionMet, UnsupportedFeature
from tdcore.rules import Status, invoke_rule, run
from tdcore.rules.legacy import LegacyRule, Rule
from tdcore.trial import create_trial
from tests.trial.writer import RunWriter


class LossAbove(Rule):
    """Fires when the loss is above a threshold."""

    def __init__(self, base_trial: Any, threshold: str = "1.5") -> None:
        super().__init__(base_trial, other_trials=None)
        self.threshold = float(threshold)
        self.seen: list[int] = []

    def invoke_at_step(self, step: int) -> bool:
        self.seen.append(step)
        return bool(self.base_trial.tensor("loss").reduction_value(step, "mean") > self.threshold)


def written(place: Path, values: dict[int, float | None], *, end: bool = True) -> RunWriter:
    """Write a run with a loss at some steps; None saves another tensor at that step instead."""
    writer = RunWriter(place)
    for step, value in values.items():
        writer.add("loss" if value is not None else "other", value or 0.0, step=step, kind="loss")
    writer.flush()
    if end:
        writer.end()
    return writer


def test_saved_steps_are_judged_in_order_and_those_without_the_tensor_skipped(tmp_path: Path) -> None:
    written(tmp_path, {0: 1.0, 5: None, 10: 1.0})
    rule = LossAbove(create_trial(tmp_path))
    invoke_rule(rule)
    assert rule.seen == [0, 5, 10]
    assert rule.report["RuleTriggered"] == 0


def test_the_first_step_that_meets_the_condition_is_raised_when_asked_for(tmp_path: Path) -> None:
    written(tmp_path, {0: 1.0, 5: 2.0, 10: 3.0})
    with pytest.raises(RuleEvaluationConditionMet) as met:
        invoke_rule(LossAbove(create_trial(tmp_path)), raise_eval_cond=True)
    assert (met.value.rule_name, met.value.step) == ("LossAbove", 5)


def test_otherwise_all_steps_are_judged(tmp_path: Path) -> None:
    written(tmp_path, {0: 1.0, 5: 2.0, 10: 3.0})
    rule = LossAbove(create_trial(tmp_path))
    invoke_rule(rule)
    assert (rule.seen, rule.report["RuleTriggered"]) == ([0, 5, 10], 2)


def test_start_is_included_and_end_is_not(tmp_path: Path) -> None:
    written(tmp_path, dict.fromkeys(range(6), 1.0))
    rule = LossAbove(create_trial(tmp_path))
    invoke_rule(rule, start_step=2, end_step=4)
    assert rule.seen == [2, 3]


def test_an_end_before_the_start_is_refused(tmp_path: Path) -> None:
    written(tmp_path, {0: 1.0})
    with pytest.raises(ConfigError, match="end_step must be at least start_step"):
        invoke_rule(LossAbove(create_trial(tmp_path)), start_step=3, end_step=2)


def test_a_run_that_goes_on_is_followed_to_its_end(tmp_path: Path) -> None:
    writer = written(tmp_path, {0: 1.0, 1: 1.0}, end=False)
    looks = threading.Event()

    def wait(seconds: float) -> None:
        if not looks.is_set():
            writer.add("loss", 1.0, step=2, kind="loss")
            writer.flush()
            writer.end()
        looks.set()

    rule = LossAbove(create_trial(tmp_path))
    invoke_rule(rule, wait=wait)
    assert rule.seen == [0, 1, 2]


def test_under_the_engine_it_ends_at_its_first_hit_and_takes_strings(tmp_path: Path) -> None:
    written(tmp_path, {0: 1.0, 5: 2.0, 10: 3.0})
    report = run(tmp_path, [LegacyRule(LossAbove, {"threshold": "1.9"})])
    (finding,) = report.findings
    assert (finding.rule, finding.step, finding.do) == (
        "LossAbove",
        5,
        "Fires when the loss is above a threshold.",
    )
    assert report.exit_code == 1


def test_under_the_engine_missing_tensors_are_not_evaluable(tmp_path: Path) -> None:
    written(tmp_path, {0: None, 1: None})
    (verdict,) = run(tmp_path, [LegacyRule(LossAbove)]).verdicts
    assert verdict.status is Status.NOT_EVALUABLE
    assert "TensorUnavailable" in verdict.reason


def test_parameters_that_it_does_not_take_are_an_error_of_the_rule(tmp_path: Path) -> None:
    written(tmp_path, {0: 1.0})
    (verdict,) = run(tmp_path, [LegacyRule(LossAbove, {"treshold": "1"})]).verdicts
    assert verdict.status is Status.ERROR
    assert "treshold" in verdict.reason


def test_action_strings_of_the_older_library_are_refused(tmp_path: Path) -> None:
    class WithActions(LossAbove):
        def __init__(self, base_trial: Any) -> None:
            Rule.__init__(self, base_trial, '{"name": "stoptraining"}')

    written(tmp_path, {0: 1.0})
    with pytest.raises(UnsupportedFeature, match="action_str"):
        WithActions(create_trial(tmp_path))
