"""Confusion: cells and their limits, columns and rows, and when a block is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdcore.errors import ConfigError
from tdcore.rules import Confusion, Engine, Status
from tdcore.rules.base import Finding
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.epochs import Batches, fit, perceptron, rings
from tests.rules.judging import RunningSource, judge, same_in_any_cuts
from tests.rules.trainings import judge_run


def three_classes(number: int, *, twins: bool) -> Batches:
    """Rings whose outer ring has two classes: at random (twins), or by side."""
    random = torch.Generator().manual_seed(2)
    found = []
    for points, labels in rings(number):
        coin = torch.rand(labels.shape, generator=random) < 0.5
        second = coin if twins else points[:, 0] > 0
        found.append((points, labels + (labels == 1) * second))
    return found


def pairs(matrix: Any, *, steps: int = 1, payload: bool = True) -> Trace:
    """Return a trace of labels and predictions with this confusion matrix, C[label][prediction]."""
    counts = np.asarray(matrix)
    labels, predictions = np.indices(counts.shape)
    trace = Trace()
    for step in range(steps):
        for name, each in (("labels", labels), ("predictions", predictions)):
            values = np.repeat(each.ravel(), counts.ravel())
            trace.add(step, name, "custom", values, payload=payload)
    return trace


def cells(found: list[Finding]) -> list[str]:
    return [str(finding.numbers["kind"]) for finding in found]


EXACT: dict[str, Any] = {"standard_errors": 0.0, "min_class_count": 1}


@pytest.mark.proves("TDC111", "fires")
def test_two_classes_that_nothing_tells_apart_are_named(tmp_path: Path) -> None:
    place = fit(tmp_path, perceptron(classes=3), three_classes(24, twins=True), epochs=6, labels=True)
    found, verdict = judge_run(Confusion(), place)
    assert verdict.status is Status.ISSUE
    assert {finding.tensor for finding in found} == {"labels"}
    assert "label 1, prediction 2" in cells(found) or "label 2, prediction 1" in cells(found)
    assert not any("0" in cell for cell in cells(found))


@pytest.mark.proves("TDC111", "quiet")
def test_rings_that_are_told_apart_stay_quiet(epochs_run: Path) -> None:
    found, verdict = judge_run(Confusion(), epochs_run)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.proves("TDC111", "not evaluable")
def test_a_run_without_labels_and_predictions_is_not_evaluable(losses_run: Path) -> None:
    _, verdict = judge_run(Confusion(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="labels", tensor_names=["labels"]' in verdict.fix
    assert 'CollectionConfig(name="predictions", tensor_names=["predictions"]' in verdict.fix


@pytest.mark.proves("TDC111", "boundary")
def test_a_diagonal_of_exactly_the_limit_does_not_fire_and_below_it_does() -> None:
    rule = Confusion(**EXACT, max_off_diag=1.0)
    assert not judge(rule, pairs([[90, 0], [10, 100]]))[0]
    assert cells(judge(rule, pairs([[89, 0], [11, 100]]))[0]) == ["label 0, prediction 0"]


@pytest.mark.proves("TDC111", "boundary")
def test_a_cell_beside_it_of_exactly_the_limit_does_not_fire_and_above_it_does() -> None:
    rule = Confusion(**EXACT, min_diag=0.0)
    assert not judge(rule, pairs([[90, 0], [10, 100]]))[0]
    assert cells(judge(rule, pairs([[89, 0], [11, 100]]))[0]) == ["label 1, prediction 0"]


@pytest.mark.proves("TDC111", "boundary")
def test_a_limit_missed_by_chance_only_does_not_fire() -> None:
    assert not judge(Confusion(min_class_count=1), pairs([[89, 0], [11, 100]]))[0]
    assert judge(Confusion(min_class_count=1), pairs([[830, 0], [170, 1000]]))[0]


def test_columns_are_precision_and_rows_recall() -> None:
    matrix = [[100, 0], [40, 960]]  # precision of 0: 71 %, recall of 1: 96 %
    by_column, by_row = Confusion(**EXACT), Confusion(**EXACT, normalize="row", min_diag=0.97)
    assert cells(judge(by_column, pairs(matrix))[0]) == ["label 0, prediction 0", "label 1, prediction 0"]
    assert cells(judge(by_row, pairs(matrix))[0]) == ["label 1, prediction 1"]


def test_the_older_diagonal_fails_even_for_a_perfect_classifier() -> None:
    perfect = pairs(np.diag([300, 300]))
    assert not judge(Confusion(), perfect)[0]
    found = judge(Confusion(compat=True), perfect)[0]
    assert cells(found) == ["label 0, prediction 0", "label 1, prediction 1"]
    assert found[0].numbers["share"] == 0.5


def test_while_a_classifier_gets_better_it_is_not_judged_and_the_last_block_is() -> None:
    trace = Trace()
    for step, right in enumerate((50, 60, 70, 80)):
        matrix = np.array([[right, 100 - right], [100 - right, right]]) * 3
        for row in pairs(matrix).rows:
            trace.rows.append(row | {"step": step, "mode_step": step})
        trace.payloads |= {2 * step + at: value for at, value in pairs(matrix).payloads.items()}
    found = same_in_any_cuts(Confusion(), trace)
    assert {finding.step for finding in found} == {3}
    assert len(found) == 4


def test_a_classifier_that_stands_still_is_judged_while_the_run_goes_on() -> None:
    found = same_in_any_cuts(Confusion(), pairs([[300, 200], [200, 300]], steps=8))
    assert {finding.step for finding in found} == {3}


def test_fewer_pairs_than_samples_are_judged_when_the_run_has_ended() -> None:
    found, verdict = judge(Confusion(), pairs([[20, 0], [20, 20]]))
    assert cells(found) == ["label 0, prediction 0", "label 1, prediction 0"]
    assert verdict.judged == 1


def test_at_the_end_of_a_run_the_newest_pairs_count_and_not_those_of_a_model_that_knew_nothing() -> None:
    trace = Trace()
    labels = np.repeat([0, 1], 15)
    for step in range(12):  # 360 pairs; the first 90 are wrong; 500 are a block
        for name, values in (("labels", labels), ("predictions", labels if step > 2 else 1 - labels)):
            trace.add(step, name, "custom", values, payload=True)
    assert not judge(Confusion(), trace)[0]
    assert cells(judge(Confusion(compat=True, min_diag=0.4), trace)[0])


def test_empty_and_small_columns_are_skipped() -> None:
    assert not judge(Confusion(), pairs([[100, 0, 0], [0, 100, 0], [0, 0, 0]]))[0]
    assert not judge(Confusion(), pairs([[100, 0, 0], [0, 100, 0], [0, 9, 0]]))[0]
    assert not judge(Confusion(), pairs([[100, 5], [0, 4]]))[0]


def test_scores_and_binary_probabilities_are_predictions_too() -> None:
    labels = np.repeat([0, 1], 50)
    for predictions in (np.eye(2)[np.zeros(100, dtype=int)], np.full(100, 0.2)):
        trace = Trace()
        trace.add(0, "labels", "custom", labels, payload=True)
        trace.add(0, "predictions", "custom", predictions, payload=True)
        assert "label 1, prediction 0" in cells(judge(Confusion(), trace)[0])


def test_other_names_and_collections_can_be_given() -> None:
    trace = pairs([[20, 0], [20, 20]])
    trace.rows[0]["name"], trace.rows[1]["name"] = "y", "p"
    assert judge(Confusion(), trace)[1].status is Status.NOT_EVALUABLE
    assert judge(Confusion(labels="y", predictions="p"), trace)[0]
    trace.collections = {"truth": ["y"], "answers": ["p"]}
    assert judge(Confusion(labels_collection="truth", predictions_collection="answers"), trace)[0]


def test_classes_beyond_their_number_are_counted_and_left_out() -> None:
    _, verdict = judge(Confusion(category_no=2), pairs([[50, 0, 0], [0, 50, 0], [0, 30, 7]]))
    assert verdict.missing == {"class of category_no = 2 or more": 37}
    assert verdict.status is Status.NO_ISSUE


def test_values_that_were_not_saved_or_have_no_partner_are_named() -> None:
    _, verdict = judge(Confusion(), pairs([[50, 0], [0, 50]], payload=False))
    assert "labels saved without their values" in verdict.reason
    trace = pairs([[50, 0], [0, 50]])
    del trace.rows[1], trace.payloads[1]
    assert "labels without predictions" in judge(Confusion(), trace)[1].reason


def test_older_parameters_come_as_text() -> None:
    rule = load_rule("confusion:category_no=10,labels=y,predictions=p,min_diag=0.8,max_off_diag=0.2")
    assert rule == Confusion(category_no=10, labels="y", predictions="p", min_diag=0.8, max_off_diag=0.2)


@pytest.mark.parametrize(
    "parameters",
    [
        {"category_no": 1},
        {"min_diag": 1.1},
        {"max_off_diag": -0.1},
        {"normalize": "both"},
        {"samples": 0},
        {"min_class_count": 0},
        {"standard_errors": -1.0},
        {"patience": -1},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Confusion(**parameters)


def test_a_patience_of_zero_judges_the_first_block() -> None:
    labels = np.arange(600) % 2
    trace = Trace()
    for name, values in (("labels", labels), ("predictions", np.zeros(600, dtype=np.int64))):
        trace.add(0, name, "custom", values, payload=True)
    engine = Engine(RunningSource(trace), [Confusion(patience=0)])
    assert {finding.numbers["kind"] for finding in engine.step()} == {
        "label 0, prediction 0",
        "label 1, prediction 0",
    }
