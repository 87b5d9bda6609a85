"""Rules about boosting on real models of LightGBM: a faulty one has a finding, a healthy one has none."""

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
from tdcore.rules.base import Rule
from tests.boosting.problems import clusters, leaking, mislabelled, problem, rare, without_relation
from tests.rules.trainings import judge_run

lightgbm: Any = pytest.importorskip("lightgbm")

from tdcore.hooks.lightgbm import Hook  # noqa: E402

MULTI = {"objective": "multiclass", "num_class": 4}
FAULTY: dict[str, tuple[Rule, Any, dict[str, Any]]] = {
    "deep trees": (TreeDepth(), problem, {"num_leaves": 200, "min_data_in_leaf": 2}),
    "a leak": (FeatureImportanceOverweight(), leaking, {"num_leaves": 4}),
    "exchanged labels": (Confusion(), mislabelled, MULTI),
    "a rare class": (ClassImbalance(), rare, {}),
    "noise": (Overfit(), lambda: problem(noise=3.0), {"learning_rate": 0.5, "min_data_in_leaf": 2}),
    "no relation": (LossNotDecreasing(), without_relation, {}),
}
HEALTHY: dict[str, tuple[Rule, Any, dict[str, Any]]] = {
    "shallow trees": (TreeDepth(), problem, {"max_depth": 3}),
    "all features": (FeatureImportanceOverweight(), problem, {}),
    "classes apart": (Confusion(), clusters, MULTI),
    "balanced": (ClassImbalance(), problem, {}),
    "learning": (Overfit(), problem, {"max_depth": 3}),
    "falling": (LossNotDecreasing(), problem, {"max_depth": 3}),
}


def found_in(place: Path, rule: Rule, data: tuple[Any, Any], parameters: dict[str, Any]) -> int:
    values, labels = data
    train_set = lightgbm.Dataset(values[:1500], labels[:1500])
    validation = lightgbm.Dataset(values[1500:], labels[1500:], reference=train_set)
    hook = Hook(place, rules=[rule], validation_data=(values[1500:], labels[1500:]), flusher="thread")
    settings = {"objective": "binary", "verbose": -1, "num_threads": 1, **parameters}
    sets = {"valid_sets": [train_set, validation], "valid_names": ["training", "validation"]}
    lightgbm.train(settings, train_set, 60, callbacks=[hook], **sets)
    hook.close()
    found, verdict = judge_run(rule, place)
    assert verdict.status.name in ("ISSUE", "NO_ISSUE"), verdict
    return len(found)


@pytest.mark.shows("LightGBM: rules on real models", "values right")
@pytest.mark.parametrize("fault", FAULTY)
def test_a_fault_is_found(fault: str, tmp_path: Path) -> None:
    rule, data, parameters = FAULTY[fault]
    assert found_in(tmp_path, rule, data(), parameters) > 0


@pytest.mark.shows("LightGBM: rules on real models", "values right")
@pytest.mark.parametrize("health", HEALTHY)
def test_a_healthy_model_has_no_finding(health: str, tmp_path: Path) -> None:
    rule, data, parameters = HEALTHY[health]
    assert found_in(tmp_path, rule, data(), parameters) == 0
