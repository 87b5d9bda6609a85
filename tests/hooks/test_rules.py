"""Hook(rules=[...]): captures the tensors that the rules need, in addition to those of the script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.config.hook_config import HookConfig
from tdcore.errors import ConfigError
from tdcore.hooks.pytorch import Hook
from tdcore.hooks.rule_capture import with_rules
from tdcore.rules import DeadRelu, LossNotDecreasing, RuleProtocol, Status, VanishingGradient, run
from tdcore.rules.requirements import STATISTICS, VALUES

from .conftest import MakeHook, ReadRun
from .models import Net, train


def configured(hook: Hook) -> dict[str, Any]:
    """Return the configuration in run.json."""
    document = json.loads((Path(hook.out_dir) / "run.json").read_text())
    configuration: dict[str, Any] = document["attempts"][-1]["configuration"]
    return configuration


def trained(hook: Hook, steps: int = 12) -> Hook:
    model = Net()
    criterion = nn.CrossEntropyLoss()
    hook.register_module(model)
    hook.register_loss(criterion)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=steps, criterion=criterion)
    return hook


@pytest.mark.parametrize(
    "rule", [VanishingGradient(), VanishingGradient, "vanishing_gradient", "TDC101:threshold=1e-7"]
)
def test_rules_come_as_instances_classes_and_text(make_hook: MakeHook, rule: object) -> None:
    hook = trained(make_hook(rules=[rule]), steps=2)
    hook.close()
    (verdict,) = run(hook.out_dir, [VanishingGradient()]).verdicts
    assert (verdict.status, verdict.judged) == (Status.NO_ISSUE, 4)
    assert configured(hook)["rules"] == ["vanishing_gradient"]


def test_the_default_records_what_a_diagnosis_needs_and_leaves_the_rules_open(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook = trained(make_hook(rules="default", save_config=None), steps=50)
    hook.close()
    found = read_run(hook)
    often = [*range(40), 40]
    assert found.steps("gradient/Net_fc1.weight") == found.steps("Net_fc1.weight") == often
    assert found.steps("CrossEntropyLoss_input_0") == [0, 10, 20, 30, 40]
    assert found.steps("Net_input_0") == list(range(0, 50, 5))
    assert found.steps("fc1_output_0") == [0, 20, 40]
    assert max(row["nbytes"] or 0 for row in found.rows) <= 8  # statistics, and values of scalars
    assert configured(hook)["rules"] == []
    assert "not_recorded" not in found.trial.notes()  # although there are no labels


def test_the_default_goes_together_with_rules_and_with_a_script_under_tdcore_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "loss = torch.nn.CrossEntropyLoss()\n"
        "for _ in range(12):\n"
        "    optimizer.zero_grad()\n"
        "    loss(model(torch.full((8, 4), 3.0)), torch.randint(0, 2, (8,))).backward()\n"
        "    optimizer.step()\n"
    )
    command = ["-m", "tdcore.run", "--out", "run", "--rule", "default", "--rule", "dead_relu", str(script)]
    subprocess.run([sys.executable, *command], cwd=tmp_path, check=True)
    trial = td.create_trial(tmp_path / "run")
    assert trial.tensor("gradient/Sequential_0.weight").steps() == list(range(12))
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    assert document["attempts"][-1]["configuration"]["rules"] == ["dead_relu"]
    assert td.diagnose(tmp_path / "run").causes[0].cause == "inputs are constant"


def test_all_rules_of_a_set_can_be_evaluated_on_what_the_hook_captures(make_hook: MakeHook) -> None:
    rules: list[RuleProtocol] = [VanishingGradient(), DeadRelu(), LossNotDecreasing(num_steps=5)]
    hook = trained(make_hook(rules=rules, save_config=None), steps=30)
    hook.close()
    statuses = [verdict.status for verdict in run(hook.out_dir, rules).verdicts]
    assert Status.NOT_EVALUABLE not in statuses
    assert Status.ERROR not in statuses


def test_the_rules_of_a_hook_are_those_that_its_run_is_judged_by(make_hook: MakeHook) -> None:
    rules = ["vanishing_gradient:threshold=10,start_step=5", DeadRelu]
    hook = trained(make_hook(rules=rules, include_collections=["gradients"]))
    hook.close()
    report = run(hook.out_dir)
    assert [verdict.rule for verdict in report.verdicts] == ["VanishingGradient", "DeadRelu"]
    assert report.verdicts[0].parameters == {"threshold": "10.0", "start_step": "5"}
    assert report.verdicts[0].findings[0].step == 5


def test_what_the_script_asks_for_of_the_same_collection_is_saved_too() -> None:
    own = td.CollectionConfig(
        name="gradients", save_config=td.SaveConfig(save_interval=30), reduction_config=VALUES
    )
    config = with_rules(HookConfig(out_dir="x", collections=[own]), [VanishingGradient])
    assert config.collections[0] == own
    assert config.collections[-1] == td.CollectionConfig(
        name="gradients", save_config=td.SaveConfig(save_interval=10), reduction_config=VALUES
    )


def test_a_collection_that_is_only_named_keeps_the_hooks_own_interval_and_form() -> None:
    when = td.SaveConfig(save_interval=20)
    config = with_rules(
        HookConfig(out_dir="x", save_config=when, include_collections=["gradients"]), "vanishing_gradient"
    )
    (gradients,) = config.collections
    assert gradients.save_config == when
    assert gradients.reduction_config == VALUES  # a hook without reduction_config saves whole tensors


def test_a_collection_that_only_rules_ask_for_is_saved_as_they_ask() -> None:
    (gradients,) = with_rules(HookConfig(out_dir="x"), [VanishingGradient]).collections
    assert gradients.reduction_config == STATISTICS


def test_the_hook_saves_at_the_steps_of_both(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook = make_hook(
        rules=[LossNotDecreasing(num_steps=40)], save_config=td.SaveConfig(save_interval=6), save_all=False
    )
    losses = read_run(trained(hook)).steps("CrossEntropyLoss_output_0")
    assert losses == [0, 2, 4, 6, 8, 10]


def test_watch_and_a_hook_from_a_configuration_take_rules(tmp_path: Path) -> None:
    with td.watch(Net(), tmp_path / "a", rules=["dead_relu"], flusher="thread") as watched:
        assert "relu_output" in watched.get_collections()
    config = HookConfig(out_dir=str(tmp_path / "b"))
    with Hook.from_config(config, rules=["dead_relu"], flusher="thread") as made:
        assert made.config.rules == ("dead_relu",)


def test_a_rule_of_the_users_own_is_captured_for_and_named_but_not_taken_from_the_run(
    make_hook: MakeHook, tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN)
    hook = trained(make_hook(rules=[f"{own}::Weights:limit=3", "vanishing_gradient"]), steps=2)
    hook.close()
    assert "weights" in hook.get_collections()
    assert configured(hook)["rules"] == [f"{own}::Weights:limit=3.0", "vanishing_gradient"]
    report = run(hook.out_dir)
    assert [verdict.rule for verdict in report.verdicts] == ["VanishingGradient"]
    assert "Weights:limit=3.0', which is not a rule of the table" in report.left_out[0]
    (verdict,) = run(hook.out_dir, [f"{own}::Weights"]).verdicts
    assert (verdict.status, verdict.judged) == (Status.NO_ISSUE, 4)


OWN = """
from dataclasses import dataclass
from typing import ClassVar

import tdcore as td
from tdcore.rules import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    code: ClassVar[str] = "U1"
    limit: float = 1.0

    def needs(self):
        return Need(what="weights", captures=(td.CollectionConfig(name="weights"),), kinds=("weight",))

    def check(self, window):
        window.judged(int((window.kind("weight") & window.ok).sum()))
        yield from ()
"""


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("vanishing_gradent", "did you mean VanishingGradient"),
        ([int], "int is not a rule"),
        ([3], "a rule must be an instance, a class or text such as the rule's name, got 3"),
    ],
)
def test_what_is_no_rule_is_refused_before_anything_is_written(tmp_path: Path, rules: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Hook(tmp_path / "run", rules=rules)
    assert not (tmp_path / "run").exists()


def test_importing_the_hooks_imports_no_rule() -> None:
    code = (
        "import sys, tdcore.hooks.pytorch, tdcore.hooks.rule_capture\n"
        "print(sorted({'pyarrow', 'tdcore.rules'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
