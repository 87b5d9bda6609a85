"""The study of class imbalance: rules find the fault, stop the training, and accept the repaired one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdcore.rules import run
from tests.studies.running import Study, run_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return run_study("class_imbalance", tmp_path_factory.mktemp("study"))


def test_the_faulty_training_is_stopped_by_the_rule_about_confused_classes(study: Study) -> None:
    (stopped,) = [line for line in study.lines if "stopped" in line]
    assert "by rule Confusion" in stopped
    assert "labels of class 8" in stopped


def test_both_rules_find_the_rare_class_of_the_faulty_training_only(study: Study) -> None:
    findings = run(study.folder / "faulty").findings  # further ones depend on the step of the stop
    assert {("ClassImbalance", "TRAIN"), ("Confusion", "EVAL")} <= {
        (each.rule, each.mode) for each in findings
    }
    assert all("class 8" in each.why for each in findings)
    assert run(study.folder / "repaired").exit_code == 0


def test_the_repaired_classifier_recognises_the_rare_class_and_all_others(study: Study) -> None:
    faulty, _, before = study.numbers("faulty: accuracy")
    repaired, _, after = study.numbers("repaired: accuracy")
    assert faulty > 0.85
    assert before < 0.1
    assert after > 0.6
    assert repaired > faulty + 0.03


def test_both_confusion_matrices_are_drawn(study: Study) -> None:
    assert sorted(path.name for path in Path(study.folder).glob("*.png")) == [
        "class_imbalance-faulty.png",
        "class_imbalance-repaired.png",
    ]
