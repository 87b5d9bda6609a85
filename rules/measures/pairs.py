"""Pairs: labels of a window with their predictions, and tables that count how often each pair occurs.

Plain values; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tdcore.analysis.classes import Ints
from tdcore.rules.columns import Mask
from tdcore.rules.measures.series import dense, group_codes
from tdcore.rules.window import Window

__all__ = ["PairTable", "paired"]


def paired(window: Window, labels: Mask, predictions: Mask) -> tuple[Ints, Ints]:
    """Return the rows of the labels, in order, and for each of them the row of its predictions, or -1.

    Labels and predictions belong together if attempt, worker, step and mode are equal. The n-th labels of a
    step, in order of execution, belong to its n-th predictions.
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


@dataclass(slots=True, kw_only=True)
class PairTable:
    """Number of occurrences of each (label, prediction) pair. Only pairs that occurred use memory."""

    label: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    prediction: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    count: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def total(self) -> int:
        """Number of all pairs."""
        return int(self.count.sum())

    @property
    def correct(self) -> int:
        """Number of pairs whose prediction equals the label."""
        return int(self.count[self.label == self.prediction].sum())

    def add(self, label: Ints, prediction: Ints, count: Ints | None = None) -> None:
        """Add pairs, each `count` times (by default once)."""
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
        """A table with the pairs of both tables."""
        found = PairTable(label=self.label, prediction=self.prediction, count=self.count)
        found.add(other.label, other.prediction, other.count)
        return found

    def sums(self, *, by_label: bool) -> tuple[Ints, Ints, Ints]:
        """(classes, number of pairs, number of correct pairs) by label or by prediction, ascending."""
        classes, inverse = np.unique(self.label if by_label else self.prediction, return_inverse=True)
        hits = np.where(self.label == self.prediction, self.count, 0)
        return (
            classes,
            np.bincount(inverse, weights=self.count, minlength=classes.size).astype(np.int64),
            np.bincount(inverse, weights=hits, minlength=classes.size).astype(np.int64),
        )


def _places(window: Window, rows: Ints) -> Ints:
    """A number for (attempt, worker, step, mode) of each row."""
    columns = window.columns
    if not rows.size:
        return np.empty(0, dtype=np.int64)
    place: Ints = group_codes(columns, rows, "attempt", "worker", "step", "mode").astype(np.int64)
    return place


def _rank(place: Ints, seq: Ints) -> Ints:
    """Position of each row among the rows of its place, in order of execution."""
    order = np.lexsort((seq, place))
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    rank = np.empty(place.size, dtype=np.int64)
    counts = np.diff(np.append(starts, place.size))
    rank[order] = np.arange(place.size) - np.repeat(starts, counts)
    return rank
