"""ClassImbalance: counts of classes, classes that are not learned, and detection of labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tdcore.analysis.classes import classes_of
from tdcore.errors import ConfigError
from tdcore.rules import ClassImbalance, Engine, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.epochs import Batches, fit, perceptron, rings
from tests.rules.judging import judge, judge_of, same_in_any_cuts
from tests.rules.trainings import judge_run


def few_outside(number: int) -> Batches:
    """Return two rings with only one point in 32 on the outer ring."""
    batches = rings(8 * number)
    points, labels = (torch.cat(each) for each in zip(*batches, strict=True))
    inner, outer = (torch.nonzero(labels == each).flatten() for each in (0, 1))
    rows = [torch.cat([inner[31 * at : 31 * at + 31], outer[at : at + 1]]) for at in range(number)]
    return [(points[each], labels[each]) for each in rows]


def batches(
    *labels: Any, predictions: Any = None, payload: bool = True, name: str = "labels", repeat: int = 1
) -> Trace:
    """Return a trace of labels of one step each, `repeat` times, with predictions."""
    trace = Trace()
    for step, each in enumerate(labels * repeat):
        trace.add(step, name, "custom", np.asarray(each), payload=payload)
        if predictions is not None:
            trace.add(step, "predictions", "custom", np.asarray(predictions), payload=payload)
    return trace


def counted(*counts: int) -> npt.NDArray[np.int64]:
    """Return this many labels of class 0, 1, ..."""
    return np.repeat(np.arange(len(counts)), counts)


@pytest.mark.proves("TDC110", "fires")
def test_a_training_with_one_rare_class_is_found(tmp_path: Path) -> None:
    place = fit(tmp_path, perceptron(), few_outside(10), epochs=6, labels=True)
    (finding, *_), verdict = judge_run(ClassImbalance(), place)
    assert verdict.status is Status.ISSUE
    assert (finding.tensor, finding.numbers["kind"]) == ("labels", "imbalance")
    assert finding.numbers["rarest"] == 1
    assert float(finding.numbers["ratio"]) == pytest.approx(31)


@pytest.mark.proves("TDC110", "fires")
def test_a_class_that_is_never_learned_is_found(tmp_path: Path) -> None:
    blind = perceptron()
    with torch.no_grad():
        list(blind.parameters())[-1][1] = -50.0  # the model never predicts class 1
    place = fit(tmp_path, blind, rings(16), epochs=4, labels=True)
    found, _ = judge_run(ClassImbalance(threshold_imbalance=100, samples=256), place)
    assert [finding.numbers["kind"] for finding in found] == ["misprediction of class 1"]


@pytest.mark.proves("TDC110", "quiet")
def test_rings_with_as_many_points_each_stay_quiet(epochs_run: Path) -> None:
    found, verdict = judge_run(ClassImbalance(), epochs_run)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.proves("TDC110", "not evaluable")
def test_a_run_without_labels_is_not_evaluable_and_the_fix_saves_them(losses_run: Path) -> None:
    _, verdict = judge_run(ClassImbalance(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="labels", include_regex=[".*labels"]' in verdict.fix
    assert "save_raw_tensor=True" in verdict.fix


def test_labels_without_their_values_are_not_evaluable() -> None:
    _, verdict = judge(ClassImbalance(), batches(counted(500, 500), payload=False))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "labels saved without their values" in verdict.reason


@pytest.mark.proves("TDC110", "boundary")
def test_a_ratio_of_exactly_the_threshold_does_not_fire_and_above_it_does() -> None:
    assert not judge(ClassImbalance(), batches(counted(500, 50)))[0]
    assert judge(ClassImbalance(), batches(counted(501, 50)))[0]
    assert judge(ClassImbalance(threshold_imbalance=9.999), batches(counted(500, 50)))[0]


@pytest.mark.proves("TDC110", "boundary")
def test_labels_are_judged_from_the_number_of_samples_on() -> None:
    _, verdict = judge(ClassImbalance(), batches(counted(480, 19)))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "labels that do not fill a block of 500 (499 times)" in verdict.reason
    assert judge(ClassImbalance(), batches(counted(480, 20)))[0]


@pytest.mark.proves("TDC110", "boundary")
def test_a_share_of_exactly_the_threshold_does_not_fire_and_above_it_does() -> None:
    labels = counted(400, 100)
    for wrong, expected in ((70, 0), (71, 1)):
        predictions = labels.copy()
        predictions[400 : 400 + wrong] = 0
        found = judge(ClassImbalance(), batches(labels, predictions=predictions, repeat=3))[0]
        assert len(found) == expected


def test_a_class_must_be_wrong_for_as_many_blocks_as_patience_says() -> None:
    labels, blind = counted(400, 100), np.zeros(500)
    assert not judge(ClassImbalance(), batches(labels, predictions=blind, repeat=2))[0]
    found = same_in_any_cuts(ClassImbalance(), batches(labels, predictions=blind, repeat=5))
    assert [finding.step for finding in found] == [2]


def test_a_model_that_has_learned_nothing_yet_is_not_reported() -> None:
    labels = counted(*[50] * 10)
    assert not judge(ClassImbalance(), batches(labels, predictions=np.zeros(500), repeat=5))[0]


def test_rare_classes_of_a_block_are_not_judged_by_their_predictions() -> None:
    labels = counted(491, 9)
    rule = ClassImbalance(threshold_imbalance=1000)
    assert not judge(rule, batches(labels, predictions=np.zeros(500), repeat=5))[0]


def test_counts_are_compared_only_with_enough_labels_per_class() -> None:
    random = np.random.default_rng(0)
    hundred = [random.integers(0, 100, 500) for _ in range(30)]
    found, verdict = judge(ClassImbalance(threshold_imbalance=3), batches(*hundred))
    assert not found
    assert verdict.missing["fewer than 50 labels per class so far"] == 9


def test_negative_labels_are_ignored() -> None:
    labels = np.concatenate([np.full(400, -100), counted(250, 250)])
    assert not judge(ClassImbalance(), batches(labels))[0]


def test_modes_and_workers_are_counted_apart() -> None:
    trace = Trace()
    for step in range(20):
        label = counted(50, 0) if step % 2 else counted(0, 50)
        trace.add(step, "labels", "custom", label, payload=True, mode="EVAL" if step % 2 else "TRAIN")
    found = same_in_any_cuts(ClassImbalance(), trace)
    assert {(finding.mode, finding.numbers["kind"]) for finding in found} == {
        ("TRAIN", "one_class"),
        ("EVAL", "one_class"),
    }


def test_the_input_of_a_loss_serves_as_labels(epochs_run: Path, healthy_run: Path) -> None:
    rule = ClassImbalance(
        labels_regex="CrossEntropyLoss_input_1", predictions_regex="CrossEntropyLoss_input_0", samples=100
    )
    found, verdict = judge_run(rule, healthy_run)
    assert not found
    assert verdict.judged > 0
    assert "labels without predictions: their counts alone are judged" not in verdict.missing


@pytest.mark.parametrize(
    ("labels", "predictions", "argmax"),
    [
        ([0, 1, 2], [0, 1, 2], False),
        ([0.0, 1.0, 2.0], np.eye(3), False),
        (np.eye(3), np.eye(3), True),
        (np.eye(3, dtype=bool), [0, 1, 2], False),
        ([[0], [1], [2]], np.eye(3), True),
        ([[0], [1], [2]], [0.0, 1.0, 2.0], False),
        ([[0, 1, 2]], np.eye(3)[np.newaxis], False),
    ],
)
def test_labels_and_predictions_come_in_many_forms(labels: Any, predictions: Any, argmax: bool) -> None:
    label, predicted = classes_of(labels, predictions, argmax=argmax)
    assert (label.tolist(), predicted.tolist()) == ([0, 1, 2], [0, 1, 2])


def test_binary_probabilities_are_cut_at_one_half() -> None:
    label, predicted = classes_of([True, False, True], [0.5, 0.49, 0.9], argmax=False)
    assert (label.tolist(), predicted.tolist()) == ([1, 0, 1], [1, 0, 1])


@pytest.mark.parametrize(
    ("labels", "predictions", "why"),
    [
        ([0, 1], [0, 1, 1], "there are not as many labels as predictions"),
        ([0.5, 1.0], [0, 1], "labels are not classes"),
        ([0, 1], [-2.5, 3.5], "neither classes nor probabilities"),
        ([0, 2], [0.1, 0.9], "neither classes nor probabilities"),
        ([0, 1], [np.nan, 0.5], "neither classes nor probabilities"),
    ],
)
def test_what_does_not_fit_is_named_and_not_guessed(labels: Any, predictions: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        classes_of(labels, predictions, argmax=False)
    _, verdict = judge(ClassImbalance(), batches(labels, predictions=predictions))
    assert why in verdict.reason


def test_older_parameters_come_as_text() -> None:
    rule = load_rule(
        "class_imbalance:threshold_imbalance=5,threshold_misprediction=0.5,samples=100,argmax=True,"
        "labels_regex=^y$,predictions_regex=^p$"
    )
    assert rule == ClassImbalance(
        threshold_imbalance=5.0,
        threshold_misprediction=0.5,
        samples=100,
        argmax=True,
        labels_regex="^y$",
        predictions_regex="^p$",
    )


@pytest.mark.parametrize(
    "parameters",
    [
        {"threshold_imbalance": 0.5},
        {"threshold_misprediction": 1.5},
        {"samples": 0},
        {"min_class_count": 0},
        {"patience": 0},
        {"labels_regex": ""},
        {"labels_regex": "("},
        {"predictions_regex": "("},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ClassImbalance(**parameters)


def test_the_older_rule_judges_few_labels_and_one_block() -> None:
    labels, wrong = counted(90, 8, 2), np.zeros(100, dtype=np.int64)
    trace = batches(labels, predictions=wrong)
    assert not judge(ClassImbalance(samples=100, min_class_count=8), trace)[0]
    found = same_in_any_cuts(ClassImbalance(samples=100, min_class_count=8, compat=True), trace)
    assert [finding.numbers["kind"] for finding in found] == ["imbalance", "misprediction of class 1"]


def test_labels_that_are_never_the_same_are_not_counted_without_end() -> None:
    trace = batches(*(np.arange(40_000) + 40_000 * step for step in range(3)))
    engine = Engine(trace.source(), [ClassImbalance()])
    assert not engine.step()
    (seen,) = judge_of(engine).memory.values()
    assert seen.classes.label.size == 0
    (verdict,) = engine.verdicts(finished=True)
    assert verdict.missing["more than 65536 classes: are the labels classes?"] == 2


@pytest.mark.parametrize(
    ("labels", "predictions"),
    [
        (np.array([1e30, 0.0]), [0, 1]),
        (np.array([np.inf, 0.0], dtype=np.float16), [0, 1]),
        ([0, 2**40], [0, 1]),
        (np.array([0, 1], dtype=np.complex64), [0, 1]),
        ([0, 1], np.array([0, 1], dtype=np.complex64)),
        ([0, 1], [[np.nan, 0.0], [0.0, 1.0]]),
    ],
)
def test_what_is_no_class_is_refused(labels: Any, predictions: Any) -> None:
    with pytest.raises(ValueError, match=r"classes|NaN"):
        classes_of(labels, predictions, argmax=False)


def test_labels_of_one_class_only_are_found_but_by_the_older_rule() -> None:
    one = batches(counted(100), repeat=6)
    ((finding,), _) = judge(ClassImbalance(), one)
    assert finding.numbers == {"kind": "one_class", "class": 0, "labels": 500}
    assert "shuffle" in finding.do
    assert not judge(ClassImbalance(compat=True), one)[0]
    assert not judge(ClassImbalance(), batches(counted(50, 50), repeat=6))[0]
