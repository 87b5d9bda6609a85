"""Rules that are irrelevant for a run: "does not apply" differs from "not evaluable"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tdcore.config.save_config import SaveConfig
from tdcore.rules import DeadRelu, NLPSequenceRatio, OutlierRank, RuleProtocol, Status, TreeDepth, run
from tdcore.rules.applicability import TrainingInfo, why_not_applicable
from tdcore.rules.requirements import VALUES, Need, captures_of
from tests.rules.trainings import blobs, train

PYTORCH = TrainingInfo(framework="pytorch", world_size=1)
TREES = Need(what="trees", frameworks=("xgboost",))
RANKS = Need(what="ranks", workers=3)
RELU = Need(
    what="ReLU",
    captures=captures_of((), (), save_config=SaveConfig(), keep=VALUES, modules=("^ReLU6?_output",)),
)


@pytest.mark.parametrize(
    ("need", "training", "classes", "seen", "applies"),
    [
        (TREES, PYTORCH, (), False, False),
        (TREES, PYTORCH, (), True, True),  # the script has saved tables of trees by hand
        (TREES, TrainingInfo(framework="xgboost", world_size=1), (), False, True),
        (TREES, TrainingInfo(framework="", world_size=1), (), False, True),
        (TREES, None, (), False, True),
        (RANKS, PYTORCH, (), True, False),
        (RANKS, TrainingInfo(framework="pytorch", world_size=3), (), True, True),
        (RELU, PYTORCH, ("Linear", "Tanh"), False, False),
        (RELU, PYTORCH, ("Linear", "torch.nn.modules.activation.ReLU6"), False, True),
        (RELU, PYTORCH, (), False, True),  # the run does not save the outputs of all layers
        (Need(what="gradients", kinds=("gradient",)), PYTORCH, ("Linear",), False, True),
    ],
)
def test_a_rule_applies_unless_the_run_is_known_to_be_of_another_kind(
    need: Need, training: TrainingInfo | None, classes: Any, seen: bool, applies: bool
) -> None:
    assert (why_not_applicable(need, training, classes, seen=seen) == "") == applies


def test_a_training_is_told_which_rules_do_not_apply_and_what_the_others_lack(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 4))
    place = train(tmp_path / "run", model, blobs(6), collections=["outputs"])
    rules: list[RuleProtocol] = [TreeDepth(), OutlierRank(), NLPSequenceRatio(), DeadRelu()]
    trees, ranks, tokens, relu = run(place, rules, write_findings=False).verdicts
    assert {each.status for each in (trees, ranks, tokens)} == {Status.NOT_APPLICABLE}
    assert tokens.reason == (
        r"the model has no layer of the kind that it judges (^\w*Embedding(Bag)?_input); functions such as "
        "F.relu are not layers and are not recorded"
    )
    assert (trees.fix, trees.captures) == ("", ())
    assert relu.status is Status.NOT_EVALUABLE  # there is a ReLU, but its values were not saved
    assert "save_raw_tensor=True" in relu.fix


def test_all_rules_are_judged_where_none_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 4))
    place = train(tmp_path / "run", model, blobs(6), collections=["outputs", "gradients"])
    report = run(place, write_findings=False)
    assert report == run(place, "all", write_findings=False)
    assert report.exit_code == 0
    assert Status.NOT_APPLICABLE in {verdict.status for verdict in report.verdicts}
