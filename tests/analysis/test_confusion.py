"""Confusion matrices equal those of scikit-learn, and those of a stored run contain every pair once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from tdcore.analysis import confusion
from tdcore.errors import TensorUnavailable
from tdcore.modes import ModeKeys
from tdcore.trial import create_trial
from tests.trial.writer import RunWriter

PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=60)


@given(PAIRS)
def test_counts_and_shares_equal_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = np.array(pairs).T
    found = confusion.count(labels, predictions)
    assert (
        found.matrix.tolist()
        == metrics.confusion_matrix(labels, predictions, labels=range(7))[
            np.ix_(found.classes, found.classes)
        ].tolist()
    )
    for average, own in (("precision", found.precision), ("recall", found.recall), ("f1", found.f1)):
        theirs = getattr(metrics, f"{average}_score")(
            labels, predictions, labels=found.classes, average=None, zero_division=np.nan
        )
        np.testing.assert_allclose(own, theirs, rtol=1e-12)
    assert found.accuracy == pytest.approx(metrics.accuracy_score(labels, predictions))
    balanced = np.mean([np.mean(predictions[labels == each] == each) for each in np.unique(labels)])
    assert found.balanced_accuracy == pytest.approx(balanced)


def test_the_worst_cells_are_the_largest_ones_outside_the_diagonal() -> None:
    found = confusion.count([4, 4, 4, 7, 7, 9, 9, 9], [4, 7, 7, 4, 7, 9, 9, 4])
    assert found.worst(2) == [(4, 7, 2), (7, 4, 1)]
    assert found.worst(9) == [(4, 7, 2), (7, 4, 1), (9, 4, 1)]
    assert found.matrix[found.of(4), found.of(7)] == 2
    with pytest.raises(KeyError, match="class 5"):
        found.of(5)


@pytest.mark.parametrize("empty", [([], []), ([-100, -1], [0, 1])])
def test_a_matrix_without_pairs_has_shares_of_nan(empty: Any) -> None:
    found = confusion.count(*empty, classes=[0, 1])
    assert found.matrix.tolist() == [[0, 0], [0, 0]]
    assert np.isnan(
        [found.accuracy, found.balanced_accuracy, *found.recall, *found.precision, *found.f1]
    ).all()


def test_scores_are_counted_by_their_largest_class_and_other_classes_are_skipped() -> None:
    found = confusion.count([0, 1, 2, 2], np.eye(3)[[0, 0, 2, 1]], classes=[0, 2])
    assert found.matrix.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("shape", [(4, 7), (4, 2), (4, 3, 5), (2, 3, 3)])
def test_the_classes_of_scores_are_the_last_axis_or_axis_one_as_in_losses(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    labels, scores = random.integers(0, 3, shape), random.normal(size=(*shape, 3))
    expected = metrics.confusion_matrix(labels.ravel(), scores.argmax(axis=-1).ravel())
    assert confusion.count(labels, scores).matrix.tolist() == expected.tolist()
    if shape != (2, 3, 3):  # the last axis could have the classes too
        assert confusion.count(labels, np.moveaxis(scores, -1, 1)).matrix.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("labels", "predictions", "why"),
    [
        ([0, 1], [0], "as many"),
        ([0, 1], [0, -1], "a prediction is -1"),
        (np.arange(5000), np.arange(5000), "5,000 classes"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(labels: Any, predictions: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        confusion.count(labels, predictions)


def test_pairs_of_all_workers_calls_and_steps_of_a_mode_are_counted_once(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    names = ["worker_0", "worker_1"]
    runs = [RunWriter(tmp_path, worker=name, world_size=2, workers=names) for name in names]
    expected: dict[tuple[str, int], list[Any]] = {}
    for step in range(4):
        mode = "TRAIN" if step < 3 else "EVAL"
        for run in runs:
            for call in range(2):
                labels, scores = random.integers(0, 5, 8), random.normal(size=(8, 5))
                for name, values in (("labels", labels), ("predictions", scores)):
                    run.add(name, values, step=step, mode=mode, mode_step=step % 3, call=call)
                expected.setdefault((mode, step % 3), []).append((labels, scores.argmax(axis=1)))
    for run in runs:
        run.flush()
        run.end()
    trial = create_trial(tmp_path)
    for key, steps in ((ModeKeys.TRAIN, [0, 1, 2]), (ModeKeys.TRAIN, [1]), (ModeKeys.EVAL, [0])):
        pairs = [pair for step in steps for pair in expected[key.name, step]]
        labels, predictions = (np.concatenate(each) for each in zip(*pairs, strict=True))
        found = confusion.from_trial(trial, mode=key, steps=steps)
        assert found.matrix.tolist() == metrics.confusion_matrix(labels, predictions).tolist()
    assert confusion.from_trial(trial).matrix.sum() == 4 * 2 * 2 * 8
    with pytest.raises(TensorUnavailable):
        confusion.from_trial(trial, "targets")
