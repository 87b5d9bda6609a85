"""Pairs: labels with the predictions for them, out of a window; and tables of how often each pair occurs.

Plain values; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.measures.series import dense, group_codes
from tdcore.rules.window import Mask, Window

__all__ = ["Ints", "PairTable", "classes_of", "label_classes", "paired"]

Ints = npt.NDArray[np.int64]
_LARGEST = 2**31  # beyond it a number is an identifier, not a class


def paired(window: Window, labels: Mask, predictions: Mask) -> tuple[Ints, Ints]:
    """(rows of labels, row of the predictions beside each; -1 where there is none), in order of rows.

    They belong together when attempt, worker, step and mode agree; the n-th labels of a step, in order of
    execution, go with its n-th predictions.
    """
    label_rows, prediction_rows = np.flatnonzero(labels), np.flatnonzero(predictions)
    rows = np.concatenate([label_rows, prediction_rows])
    place = _places(window, rows)
    keys = [
        list(zip(own.tolist(), _rank(own, window.columns.ints("seq")[part]).tolist(), strict=True))
        for own, part in (
            (place[: label_rows.size], label_rows),
            (place[label_rows.size :], prediction_rows),
        )
    ]
    found = dict(zip(keys[1], prediction_rows.tolist(), strict=True))
    return label_rows, np.array([found.get(key, -1) for key in keys[0]], dtype=np.int64)


def classes_of(labels: Any, predictions: Any, *, argmax: bool) -> tuple[Ints, Ints]:
    """Labels and predictions as one class number each, in one axis.

    labels: class numbers, or one-hot in the last axis. predictions: class numbers; scores of classes in one
    axis more than the labels have; or the probability of class 1 of two (cut at 0.5). argmax: the last axis
    of both holds classes, wherever it is longer than 1. Raises ValueError that says why not.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if argmax or predictions.ndim == labels.ndim + 1:
        predictions = _largest(predictions)
    found = label_classes(labels, argmax=argmax or labels.ndim == predictions.ndim + 1)
    predicted = predictions.ravel()
    if predicted.size != found.size:
        raise ValueError("labels and predictions differ in number")
    if not _whole(predicted):
        share = predicted.dtype.kind == "f" and predicted.min() >= 0 and predicted.max() <= 1
        if not (share and found.max(initial=0) <= 1):
            raise ValueError("predictions are neither classes nor probabilities")
        predicted = predicted >= 0.5
    return found, predicted.astype(np.int64)


def label_classes(labels: Any, *, argmax: bool) -> Ints:
    """Labels as one class number each, in one axis. argmax: the last axis, where longer than 1, is one-hot.

    Raises ValueError for labels that are not whole numbers.
    """
    labels = np.asarray(labels)
    if argmax:
        labels = _largest(labels)
    if not _whole(labels):
        raise ValueError("labels are not classes (whole numbers)")
    flat: Ints = labels.ravel().astype(np.int64)
    return flat


@dataclass(slots=True, kw_only=True)
class PairTable:
    """How often each pair of (label, prediction) was seen; only pairs that occurred take room."""

    label: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    prediction: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    count: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def total(self) -> int:
        """Pairs seen."""
        return int(self.count.sum())

    @property
    def correct(self) -> int:
        """Pairs whose prediction is the label."""
        return int(self.count[self.label == self.prediction].sum())

    def add(self, label: Ints, prediction: Ints, count: Ints | None = None) -> None:
        """Takes in pairs, each `count` times (once without it)."""
        labels = np.concatenate([self.label, label])
        predictions = np.concatenate([self.prediction, prediction])
        if not labels.size:
            return
        more = np.ones(label.size, dtype=np.int64) if count is None else count
        column, number = dense(predictions)
        code = dense(labels)[0] * number + column
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        weights = np.concatenate([self.count, more])
        self.count = np.bincount(inverse, weights=weights, minlength=first.size).astype(np.int64)
        self.label, self.prediction = labels[first], predictions[first]

    def merged(self, other: PairTable) -> PairTable:
        """The pairs of both."""
        found = PairTable(label=self.label, prediction=self.prediction, count=self.count)
        found.add(other.label, other.prediction, other.count)
        return found

    def sums(self, *, by_label: bool) -> tuple[Ints, Ints, Ints]:
        """(classes, pairs of each, correct ones of each), by label or by prediction, ascending."""
        classes, inverse = np.unique(self.label if by_label else self.prediction, return_inverse=True)
        hits = np.where(self.label == self.prediction, self.count, 0)
        return (
            classes,
            np.bincount(inverse, weights=self.count, minlength=classes.size).astype(np.int64),
            np.bincount(inverse, weights=hits, minlength=classes.size).astype(np.int64),
        )


def _largest(scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Position of the largest along the last axis; the values themselves where that holds one or none.

    Raises ValueError for NaN, than which nothing is larger.
    """
    if scores.ndim == 0 or scores.shape[-1] <= 1 or scores.size == 0:
        return scores
    if scores.dtype.kind not in "iub" and bool(np.any(np.isnan(scores))):
        raise ValueError("scores hold NaN")
    return np.asarray(scores.argmax(axis=-1))


def _whole(values: npt.NDArray[Any]) -> bool:
    """Whether all values are whole numbers that a class may bear, whatever their type."""
    if values.dtype.kind not in "iubf":
        return False
    if values.dtype.kind != "f" and (values.dtype.itemsize < 4 or values.dtype == np.int32):
        return True
    wide = values.astype(np.float64)  # of NaN all comparisons are false
    return bool(np.all((np.floor(wide) == wide) & (np.abs(wide) < _LARGEST)))


def _places(window: Window, rows: Ints) -> Ints:
    """A number for (attempt, worker, step, mode) of each row."""
    columns = window.columns
    if not rows.size:
        return np.empty(0, dtype=np.int64)
    place: Ints = group_codes(columns, rows, "attempt", "worker", "step", "mode").astype(np.int64)
    return place


def _rank(place: Ints, seq: Ints) -> Ints:
    """Position of each row among those of its place, in order of execution."""
    order = np.lexsort((seq, place))
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    rank = np.empty(place.size, dtype=np.int64)
    counts = np.diff(np.append(starts, place.size))
    rank[order] = np.arange(place.size) - np.repeat(starts, counts)
    return rank
