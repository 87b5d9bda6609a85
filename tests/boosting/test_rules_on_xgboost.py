"""Rules about boosting on real models of XGBoost: a faulty one has a finding, a healthy one has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tdcore.rules import (
    ClassImbalance,
    Confusion,
    FeatureImportanceOverweight,
    LossNotDecreasing,
    Overfit,
    TreeDepth,
)
from tdcore.rules.base import Finding, Rule
from tests.boosting.problems import clusters, leaking, mislabelled, problem, rare, without_relation
from tests.rules.trainings import judge_run

xgboost: Any = pytest.importorskip("xgboost")

from tdcore.hooks.xgboost import Hook  # noqa: E402

pytestmark = pytest.mark.shows("XGBoost: rules on real models", "values right")


def findings(
    rule: Rule,
    place: Path,
    data: tuple[Any, Any],
    *,
    rounds: int = 60,
    train_rows: int = 1500,
    weights: Any = None,
    **parameters: Any,
) -> list[Finding]:
    """Train with the captures that the rule needs, and judge the run. The rule must be able to judge it."""
    values, labels = data
    dtrain = xgboost.DMatrix(values[:train_rows], labels[:train_rows], weight=weights)
    dvalid = xgboost.DMatrix(values[-1500:], labels[-1500:])
    settings = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1, "seed": 0, **parameters}
    hook = Hook(place, rules=[rule], validation_data=dvalid, flusher="thread")
    xgboost.train(
        settings,
        dtrain,
        rounds,
        evals=[(dtrain, "train"), (dvalid, "validation")],
        verbose_eval=False,
        callbacks=[hook],
    )
    hook.close()
    found, verdict = judge_run(rule, place)
    assert verdict.status.name in ("ISSUE", "NO_ISSUE"), verdict
    return found


@pytest.mark.proves("TDC115", "fires")
def test_trees_without_a_limit_of_depth_are_too_deep(tmp_path: Path) -> None:
    found = findings(TreeDepth(), tmp_path, problem(), max_depth=0, grow_policy="lossguide", max_leaves=200)
    assert {finding.numbers["by"] for finding in found} == {"the links of its nodes"}
    assert max(float(finding.numbers["depth"]) for finding in found) > 6


@pytest.mark.proves("TDC115", "quiet")
def test_trees_of_depth_3_are_not_too_deep(tmp_path: Path) -> None:
    assert not findings(TreeDepth(), tmp_path, problem())


@pytest.mark.proves("TDC116", "fires")
def test_a_feature_that_leaks_the_label_is_overweight(tmp_path: Path) -> None:
    found = findings(FeatureImportanceOverweight(), tmp_path, leaking())
    assert found
    assert {finding.tensor for finding in found} == {"feature_importance/weight/f3"}


@pytest.mark.proves("TDC116", "quiet")
def test_features_that_all_matter_are_not_overweight(tmp_path: Path) -> None:
    assert not findings(FeatureImportanceOverweight(), tmp_path, problem())


@pytest.mark.proves("TDC111", "fires")
def test_classes_with_exchanged_labels_are_confused(tmp_path: Path) -> None:
    parameters: dict[str, Any] = {"objective": "multi:softprob", "num_class": 4}
    found = findings(Confusion(), tmp_path, mislabelled(), **parameters)
    pairs = {finding.numbers["kind"] for finding in found}
    assert pairs == {f"label {label}, prediction {prediction}" for label in (1, 2) for prediction in (1, 2)}


@pytest.mark.proves("TDC111", "quiet")
@pytest.mark.parametrize("objective", ["multi:softprob", "multi:softmax"])
def test_classes_that_a_model_separates_are_not_confused(objective: str, tmp_path: Path) -> None:
    parameters: dict[str, Any] = {"objective": objective, "num_class": 4}
    assert not findings(Confusion(), tmp_path, clusters(), **parameters)


@pytest.mark.proves("TDC110", "fires")
def test_a_rare_class_that_is_never_predicted_is_found(tmp_path: Path) -> None:
    found = findings(ClassImbalance(), tmp_path, rare())
    assert {finding.numbers["kind"] for finding in found} == {"imbalance", "misprediction of class 1"}


@pytest.mark.proves("TDC110", "quiet")
def test_balanced_classes_are_quiet(tmp_path: Path) -> None:
    assert not findings(ClassImbalance(), tmp_path, problem())


@pytest.mark.proves("TDC105", "fires")
def test_deep_trees_on_few_rows_with_noise_overfit(tmp_path: Path) -> None:
    data = problem(noise=3.0)
    found = findings(Overfit(), tmp_path, data, train_rows=300, max_depth=8, eta=0.5)
    assert found
    assert {finding.tensor for finding in found} == {"validation-logloss"}
    assert float(found[0].numbers["validation_loss"]) > float(found[0].numbers["training_loss"])


@pytest.mark.proves("TDC105", "quiet")
def test_shallow_trees_that_still_learn_do_not_overfit(tmp_path: Path) -> None:
    assert not findings(Overfit(), tmp_path, problem(), eta=0.1)


@pytest.mark.proves("TDC105", "quiet")
def test_early_stopping_ends_before_a_finding(tmp_path: Path) -> None:
    data = problem(noise=3.0)
    early = [xgboost.callback.EarlyStopping(rounds=10)]
    values, labels = data
    dtrain, dvalid = xgboost.DMatrix(values[:300], labels[:300]), xgboost.DMatrix(values[300:], labels[300:])
    hook = Hook(tmp_path, flusher="thread")
    settings = {"objective": "binary:logistic", "max_depth": 8, "eta": 0.5, "nthread": 1}
    sets = [(dtrain, "train"), (dvalid, "validation")]
    xgboost.train(settings, dtrain, 60, evals=sets, verbose_eval=False, callbacks=[hook, *early])
    hook.close()
    assert not judge_run(Overfit(), tmp_path)[0]


@pytest.mark.proves("TDC103", "fires")
def test_labels_without_a_relation_to_the_features_do_not_decrease_the_loss(tmp_path: Path) -> None:
    found = findings(LossNotDecreasing(), tmp_path, without_relation(), eta=0.1)
    assert {finding.tensor for finding in found} == {"validation-logloss"}


@pytest.mark.proves("TDC103", "quiet")
def test_the_loss_of_a_model_that_learns_decreases(tmp_path: Path) -> None:
    assert not findings(LossNotDecreasing(), tmp_path, problem(), eta=0.1)


@pytest.mark.parametrize(
    ("rule", "tensor"),
    [(TreeDepth(depth=3.0), "trees/ID"), (FeatureImportanceOverweight(nfeatures=1, threshold=0.1), "f")],
)
def test_rules_read_each_fold_of_a_cross_validation(rule: Rule, tensor: str, tmp_path: Path) -> None:
    hook = Hook(tmp_path, include_collections=["trees", "feature_importance"], flusher="thread")
    settings = {"objective": "binary:logistic", "max_depth": 5, "nthread": 1}
    xgboost.cv(settings, xgboost.DMatrix(*problem()), 11, nfold=2, callbacks=[hook])
    hook.close()
    found, _ = judge_run(rule, tmp_path)
    assert {finding.tensor.partition("/")[0] for finding in found} == {"fold_0", "fold_1"}
    assert all(tensor in finding.tensor for finding in found)
    assert {finding.step for finding in found} == {0, 10}
