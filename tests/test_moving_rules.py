"""Rules in the style of smdebug (docs/moving.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcore as td
import tdcore.smd as smd
from tdcore.errors import ConfigError
from tdcore.rules import Rule, run
from tdcore.rules.loading import load_rule
from tests.moving import recorded
from tests.trial.writer import RunWriter


class LossAbove(Rule):
    """Fires when the loss is above a threshold."""

    def __init__(self, base_trial: Any, threshold: str = "0") -> None:
        super().__init__(base_trial)
        self.threshold = float(threshold)
        self.seen: list[int] = []

    def set_required_tensors(self, step: int) -> None:
        for name in self.base_trial.tensor_names(regex="Loss"):
            self.req_tensors.add(name, steps=[step])

    def invoke_at_step(self, step: int) -> bool:
        self.seen.append(step)
        return any(tensor.value(step).max() > self.threshold for tensor in self.req_tensors.get())


class EndsAt1(smd.Rule):
    def __init__(self, base_trial: Any) -> None:
        super().__init__(base_trial, action_str="", other_trials=None)
        self.seen: list[int] = []

    def invoke_at_step(self, step: int) -> bool:
        self.seen.append(step)
        if step == 1:
            raise smd.RuleEvaluationConditionMet(self.rule_name, step, end_of_rule=True)
        return False


def test_the_rule_of_tdcore_rules_is_the_class_to_inherit_from(tmp_path: Path) -> None:
    rule = LossAbove(recorded(tmp_path))
    smd.invoke_rule(rule, start_step=None)
    assert (rule.seen, rule.report["RuleTriggered"]) == ([0, 1, 2, 3], 4)


def test_a_rule_in_a_file_runs_under_the_engine(tmp_path: Path) -> None:
    recorded(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(
        "from tdcore.rules import Rule\n\n\n"
        "class Negative(Rule):\n"
        "    def invoke_at_step(self, step):\n"
        "        value = self.base_trial.tensor('Net_fc.weight').value(step)\n"
        "        value[:] = -1  # a rule may use the array as it likes\n"
        "        return bool((value < 0).all())\n"
    )
    report = run(tmp_path / "run", [load_rule(str(file))])
    assert [finding.step for finding in report.findings] == [0]


def test_required_tensors_are_fetched_before_the_step_is_judged(tmp_path: Path) -> None:
    class Needs(LossAbove):
        def set_required_tensors(self, step: int) -> None:
            self.req_tensors.add("gradient/", steps=[step], should_match_regex=True)

    rule = Needs(recorded(tmp_path), threshold="100")
    smd.invoke_rule(rule)
    assert rule.seen == [0, 1, 2]  # step 3 is an evaluation without gradients
    assert rule.req_tensors.get_names() == ["gradient/Net_fc.bias", "gradient/Net_fc.weight"]
    assert rule.req_tensors.get_tensor_steps("gradient/Net_fc.bias") == [3]


def test_a_required_tensor_that_was_never_saved_skips_the_steps(tmp_path: Path) -> None:
    class Needs(LossAbove):
        def set_required_tensors(self, step: int) -> None:
            self.req_tensors.add("absent", steps=[step])

    rule = Needs(recorded(tmp_path))
    smd.invoke_rule(rule)
    assert rule.seen == []


def test_required_tensors_of_a_trial_that_the_rule_lacks_are_refused(tmp_path: Path) -> None:
    rule = LossAbove(recorded(tmp_path))
    with pytest.raises(ConfigError, match="not one of the rule's trials"):
        rule.req_tensors.add("Net_fc.bias", [0], trial=td.create_trial(tmp_path / "run"))


def test_a_rule_compares_with_other_trials(tmp_path: Path) -> None:
    class Same(Rule):
        def set_required_tensors(self, step: int) -> None:
            for trial in self.trials:
                self.req_tensors.add("Net_fc.weight", [step], trial)

        def invoke_at_step(self, step: int) -> bool:
            (mine,), (other,) = self.req_tensors.get(), self.req_tensors.get(self.other_trials[0])
            return bool(np.array_equal(mine.value(step), other.value(step)))

    recorded(tmp_path / "a")
    recorded(tmp_path / "b")
    first, second = (smd.create_trial(str(tmp_path / name / "run")) for name in "ab")
    smd.invoke_rule(Same(first, other_trials=[second]), raise_eval_cond=True)
    with pytest.raises(smd.RuleEvaluationConditionMet):
        smd.invoke_rule(Same(first, other_trials=[first]), raise_eval_cond=True)


def test_a_rule_that_has_ended_is_invoked_no_more(tmp_path: Path) -> None:
    rule = EndsAt1(recorded(tmp_path))
    smd.invoke_rule(rule)
    assert rule.seen == [0, 1]


def test_a_rule_that_waits_beyond_the_end_of_the_run_skips_the_step(tmp_path: Path) -> None:
    class LooksAhead(LossAbove):
        def invoke_at_step(self, step: int) -> bool:
            self.base_trial.wait_for_steps([step + 1])
            return super().invoke_at_step(step)

    rule = LooksAhead(recorded(tmp_path))
    smd.invoke_rule(rule)
    assert rule.seen == [0, 1, 2]


def test_while_a_step_is_judged_the_trial_answers_from_what_was_read(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run")
    writer.add("loss", 1.0, step=0, kind="loss")
    writer.flush()

    class Writes(smd.Rule):
        def invoke_at_step(self, step: int) -> bool:
            writer.add("late", 1.0, step=0, kind="loss")
            writer.flush()
            return self.base_trial.has_tensor("late")

    rule = Writes(smd.create_trial(str(tmp_path / "run")))
    assert rule.judge(0) is False
    assert rule.judge(0) is True


def test_a_step_that_was_not_saved_cannot_be_invoked(tmp_path: Path) -> None:
    with pytest.raises(smd.NoMoreData):
        LossAbove(recorded(tmp_path)).invoke(17)


def test_a_rule_without_invoke_at_step_says_so(tmp_path: Path) -> None:
    class Empty(Rule):
        pass

    with pytest.raises(TypeError, match="Empty has no method invoke_at_step"):
        Empty(recorded(tmp_path))


def test_a_dataclass_with_check_may_inherit_from_rule(tmp_path: Path) -> None:
    recorded(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from tdcore.rules import Need, Rule\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Quiet(Rule):\n"
        "    code = 'user'\n\n"
        "    def needs(self):\n"
        "        return Need(what='anything')\n\n"
        "    def check(self, window):\n"
        "        window.judged(len(window))\n"
        "        yield from ()\n"
    )
    assert run(tmp_path / "run", [load_rule(str(file))]).findings == []
