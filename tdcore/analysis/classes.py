"""Class numbers of labels and predictions in their usual forms: numbers, one-hot, scores, probabilities.

Stateless functions; any thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Ints", "classes_of", "label_classes"]

Ints = npt.NDArray[np.int64]
_LARGEST = 2**31  # larger numbers are identifiers, not classes


def classes_of(labels: Any, predictions: Any, *, argmax: bool) -> tuple[Ints, Ints]:
    """Convert labels and predictions to class numbers in one axis.

    Args:
        labels: Class numbers, or one-hot in the last axis.
        predictions: Class numbers; or scores of classes, with one axis more than the labels: the last axis,
            or axis 1 as in the losses of PyTorch; or the probability of class 1 of two (threshold 0.5).
        argmax: The last axis of both arrays holds classes if it is longer than 1.

    Returns:
        Two arrays of the same shape (n,).

    Raises:
        ValueError: The arrays cannot be converted. The message has the reason.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if argmax or predictions.ndim == labels.ndim + 1:
        predictions = _largest(predictions if argmax else _classes_last(predictions, labels.shape))
    found = label_classes(labels, argmax=argmax or labels.ndim == predictions.ndim + 1)
    predicted = predictions.ravel()
    if predicted.size != found.size:
        raise ValueError("there are not as many labels as predictions")
    if not _whole(predicted):
        share = predicted.dtype.kind == "f" and predicted.min() >= 0 and predicted.max() <= 1
        if not (share and found.max(initial=0) <= 1):
            raise ValueError("predictions are neither classes nor probabilities")
        predicted = predicted >= 0.5
    return found, predicted.astype(np.int64)


def label_classes(labels: Any, *, argmax: bool) -> Ints:
    """Convert labels to class numbers in one axis. argmax: a last axis longer than 1 is one-hot.

    Raises ValueError for labels that are not whole numbers.
    """
    labels = np.asarray(labels)
    if argmax:
        labels = _largest(labels)
    if not _whole(labels):
        raise ValueError("labels are not classes (whole numbers)")
    flat: Ints = labels.ravel().astype(np.int64)
    return flat


def _classes_last(scores: npt.NDArray[Any], labels: tuple[int, ...]) -> npt.NDArray[Any]:
    """Move the classes to the last axis if only axis 1 can be the classes. labels: shape of the labels."""
    if scores.shape[:-1] != labels and scores.shape[:1] + scores.shape[2:] == labels:
        return np.moveaxis(scores, 1, -1)
    return scores


def _largest(scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Position of the largest value along the last axis; the values themselves for an axis of length 0 or 1.

    Raises ValueError for NaN, which has no order.
    """
    if scores.ndim == 0 or scores.shape[-1] <= 1 or scores.size == 0:
        return scores
    if scores.dtype.kind not in "iub" and bool(np.any(np.isnan(scores))):
        raise ValueError("scores contain NaN")
    return np.asarray(scores.argmax(axis=-1))


def _whole(values: npt.NDArray[Any]) -> bool:
    """Whether all values are whole numbers (of any type) that can be class numbers."""
    if values.dtype.kind not in "iubf":
        return False
    if values.dtype.kind != "f" and (values.dtype.itemsize < 4 or values.dtype == np.int32):
        return True
    wide = values.astype(np.float64)  # all comparisons with NaN are false
    return bool(np.all((np.floor(wide) == wide) & (np.abs(wide) < _LARGEST)))
