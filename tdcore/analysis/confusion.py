"""Confusion matrices of stored labels and predictions, with precision and recall of each class.

    found = confusion.from_trial(run, "labels", "predictions", mode=ModeKeys.EVAL)
    found.recall                    # one number per class of found.classes
    found.worst(3)                  # the largest cells outside the diagonal

Any thread; for `from_trial`, the threads of the Trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tdcore.analysis.classes import Ints, classes_of
from tdcore.analysis.matrices import Floats
from tdcore.modes import ModeKeys

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["Confusion", "Mistake", "count", "from_trial"]

_MOST_CLASSES = 4096  # a matrix of 128 MiB


class Mistake(NamedTuple):
    """A cell outside the diagonal: `pairs` elements of class `label` have the prediction `prediction`."""

    label: int
    prediction: int
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """Number of pairs with each label and each prediction.

    Attributes:
        classes: Class number of each row and column, shape (n,), ascending.
        matrix: Pairs by label (rows) and prediction (columns), int64, shape (n, n).

    Source of the measures: R. Kohavi, F. Provost, Glossary of terms, Machine Learning 30, 1998.
    """

    classes: Ints
    matrix: Ints

    @property
    def labels(self) -> Ints:
        """Number of labels of each class, shape (n,)."""
        found: Ints = self.matrix.sum(axis=1)
        return found

    @property
    def predictions(self) -> Ints:
        """Number of predictions of each class, shape (n,)."""
        found: Ints = self.matrix.sum(axis=0)
        return found

    @property
    def accuracy(self) -> float:
        """Share of the pairs whose prediction equals the label; NaN without pairs."""
        return float(_shares(np.trace(self.matrix), self.matrix.sum()))

    @property
    def precision(self) -> Floats:
        """Share of the predictions of each class that are correct, shape (n,); NaN without predictions."""
        return _shares(np.diagonal(self.matrix), self.predictions)

    @property
    def recall(self) -> Floats:
        """Share of the labels of each class that are predicted correctly, shape (n,); NaN without labels."""
        return _shares(np.diagonal(self.matrix), self.labels)

    @property
    def f1(self) -> Floats:
        """Harmonic mean of precision and recall of each class, shape (n,); NaN for a class without pairs."""
        return _shares(2 * np.diagonal(self.matrix), self.labels + self.predictions)

    @property
    def balanced_accuracy(self) -> float:
        """Mean of the recall over the classes that have labels; NaN without pairs."""
        there = self.labels > 0
        return float(self.recall[there].mean()) if there.any() else float("nan")

    def of(self, label: int) -> int:
        """Position of a class in `classes` and `matrix`. Raises KeyError for a class that did not occur."""
        at = int(np.searchsorted(self.classes, label))
        if at == self.classes.size or self.classes[at] != label:
            raise KeyError(f"class {label} is not a class of this matrix: {self.classes.tolist()[:20]}")
        return at

    def worst(self, count: int = 3) -> list[Mistake]:
        """The `count` largest cells outside the diagonal, largest first, without cells of zero."""
        wrong = np.where(np.eye(self.classes.size, dtype=np.bool_), 0, self.matrix)
        order = np.argsort(-wrong, axis=None, kind="stable")[:count]
        cells = zip(*np.unravel_index(order, wrong.shape), strict=True)
        names = self.classes.tolist()
        return [
            Mistake(names[row], names[column], int(wrong[row, column]))
            for row, column in cells
            if wrong[row, column]
        ]


def count(labels: Any, predictions: Any, *, classes: Iterable[int] | None = None) -> Confusion:
    """Count pairs of labels and predictions.

    Args:
        labels: Class numbers, or one-hot in the last axis. Negative labels are skipped, as losses do.
        predictions: Class numbers; or scores, with one axis more than the labels, which is the last one or
            axis 1 (the largest score is the prediction); or probabilities of class 1 of two (threshold 0.5).
        classes: Classes of the matrix; pairs with other classes are skipped. None: all classes that occur.

    Raises:
        ValueError: The arrays do not fit, a prediction is negative, or there are more than 4096 classes.
    """
    label, predicted = classes_of(labels, predictions, argmax=False)
    return _counted([(label, predicted)], classes)


def from_trial(
    trial: Trial,
    labels: str = "labels",
    predictions: str = "predictions",
    *,
    mode: ModeKeys = ModeKeys.GLOBAL,
    steps: Iterable[int] | None = None,
    classes: Iterable[int] | None = None,
) -> Confusion:
    """Count the pairs of two stored tensors, of all workers and all calls.

    Args:
        trial: The run.
        labels, predictions: Names of the tensors, in the forms of count(). Their values must be stored.
            They may be the inputs of a loss: CrossEntropyLoss_input_1 and CrossEntropyLoss_input_0.
        mode: Mode of the steps.
        steps: Steps of the mode. None: all steps at which both tensors were saved.
        classes: See count().

    Raises:
        TensorUnavailable: The run has no such tensor, or a tensor has no values at a step of `steps`.
        ValueError: See count().
    """
    return _counted(_pairs(trial, labels, predictions, mode, steps), classes)


def _pairs(
    trial: Trial, labels: str, predictions: str, mode: ModeKeys, steps: Iterable[int] | None
) -> Iterator[tuple[Ints, Ints]]:
    both = [trial.tensor(name) for name in (labels, predictions)]
    if steps is None:
        steps = sorted(set(both[0].steps(mode)) & set(both[1].steps(mode)))
    for step in steps:
        for worker in both[0].workers(step, mode):
            of_mode = None if mode is ModeKeys.GLOBAL else mode
            rows = trial.rows([labels], steps=step, mode=of_mode, workers=worker, columns=["call"])
            for call in sorted(set(rows.column("call").to_pylist())):
                values = (each.value(step, mode, worker, call=call) for each in both)
                yield classes_of(*values, argmax=False)


def _counted(pairs: Iterable[tuple[Ints, Ints]], classes: Iterable[int] | None) -> Confusion:
    found = list(pairs) or [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))]
    label, predicted = (np.concatenate(each) for each in zip(*found, strict=True))
    label, predicted = label[label >= 0], predicted[label >= 0]
    if predicted.size and predicted.min() < 0:
        raise ValueError(f"a prediction is {predicted.min()}; classes are 0 or more")
    names = (
        np.union1d(label, predicted)
        if classes is None
        else np.unique(np.array(list(classes), dtype=np.int64))
    )
    if names.size > _MOST_CLASSES:
        raise ValueError(f"there are {names.size:,} classes; at most {_MOST_CLASSES:,} are counted")
    listed = np.isin(label, names) & np.isin(predicted, names)
    row, column = (np.searchsorted(names, each[listed]) for each in (label, predicted))
    counts = np.bincount(row * names.size + column, minlength=names.size**2)
    return Confusion(classes=names, matrix=counts.reshape(names.size, names.size).astype(np.int64))


def _shares(part: Any, whole: Any) -> Floats:
    """part / whole; NaN where whole is 0."""
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    found: Floats = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
    return found
