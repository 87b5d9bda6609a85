"""Answer `predictions`: the confusion matrix of saved labels and predictions, and the accuracy by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tdcore.analysis.classes import Ints, classes_of
from tdcore.errors import RunError
from tdcore.modes import ModeKeys
from tdcore.rules.measures.pairs import PairTable
from tdcore.view.answers.buckets import points
from tdcore.view.answers.packing import pack_ints
from tdcore.view.answers.places import at
from tdcore.view.answers.scope import Scope

if TYPE_CHECKING:
    from tdcore.trial import Tensor
    from tdcore.view.answers.catalog import TensorEntry
    from tdcore.view.answers.opened import OpenRun
    from tdcore.view.answers.parameters import Parameters

__all__ = ["PARAMETERS", "answer"]

PARAMETERS = ("mode", "step")

_NAMES = ("labels", "predictions")
_LOSSES = ("CrossEntropyLoss", "NLLLoss", "BCELoss")
_MOST_BATCHES = 200
_MOST_CLASSES = 200
_MOST_ELEMENTS = 1 << 22  # of one batch
_COLUMNS = 400
_NOTHING = (
    "labels and predictions were not saved with their values: save tensors of the names 'labels' and "
    "'predictions', or the inputs of the loss"
)


def answer(run: OpenRun, parameters: Parameters) -> dict[str, Any]:
    """`Predictions` of the contract: the newest 200 batches, or the batch of `step`."""
    labels, predictions = _tensors(run)
    scope = Scope.of(run, [labels] if labels else [], parameters, columns=_COLUMNS)
    step = parameters.number("step", None)
    found: dict[str, Any] = {
        "text": _NOTHING,
        "labels": labels,
        "predictions": predictions,
        "mode": scope.mode,
        "modes": scope.modes,
        "first": None,
        "last": None,
        "classes": [],
        "matrix": pack_ints(np.empty(0)),
        "accuracy": points(np.empty(0, dtype=np.int64), np.empty(0), _COLUMNS),
    }
    return found if not labels else found | _counted(run, labels, predictions, ModeKeys[scope.mode], step)


def _tensors(run: OpenRun) -> tuple[str, str]:
    """Names of the tensors with labels and predictions; "" if there are none."""
    tensors = run.catalog.tensors
    pairs = [
        _NAMES,
        *((name, f"{name.removesuffix('1')}0") for name, each in tensors.items() if _is_label(each)),
    ]
    for pair in pairs:
        if all(name in tensors and run.saved_steps[name].has_values for name in pair):
            return pair
    return "", ""


def _is_label(tensor: TensorEntry) -> bool:
    """Whether a tensor is the second input of a loss for classes."""
    return tensor.name.endswith("_input_1") and tensor.origin in _LOSSES


def _counted(run: OpenRun, labels: str, predictions: str, mode: ModeKeys, step: int | None) -> dict[str, Any]:
    """The parts of the answer that are counted from values."""
    both = [run.trial.tensor(name) for name in (labels, predictions)]
    steps = set.intersection(*(set(each.steps(mode, show_incomplete_steps=True)) for each in both))
    chosen = sorted(each for each in steps if step in (None, each))[-_MOST_BATCHES:]
    table, right, of_step, reason = PairTable(), [], [], ""
    for each in chosen:
        share = np.nan
        try:
            classes, predicted = _pairs(both[0], both[1], each, mode)
        except (RunError, ValueError) as error:  # such as NaN: a gap in the curve of the accuracy
            reason = str(error)
        else:
            table.add(classes, predicted)
            share = float(np.mean(classes == predicted)) if classes.size else np.nan
        right.append(share)
        of_step.append(each)
    if not table.total:
        return {"text": f"{labels} and {predictions} cannot be counted: {reason}" if reason else _NOTHING}
    accuracy = points(np.array(of_step, dtype=np.int64), np.array(right), _COLUMNS)
    first, last = (
        at(run.trial, mode.name, each, _global_step(run, mode, each)) for each in (of_step[0], of_step[-1])
    )
    some = {"first": first, "last": last, "accuracy": accuracy}
    classes = np.union1d(table.label, table.prediction)
    if len(classes) > _MOST_CLASSES:
        return some | {"text": f"there are {len(classes):,} classes; at most {_MOST_CLASSES} are shown"}
    matrix = np.zeros((len(classes), len(classes)), dtype=np.int64)
    matrix[np.searchsorted(classes, table.label), np.searchsorted(classes, table.prediction)] = table.count
    return some | {
        "text": "",
        "classes": [str(each) for each in classes.tolist()],
        "matrix": pack_ints(matrix),
    }


def _pairs(labels: Tensor, predictions: Tensor, step: int, mode: ModeKeys) -> tuple[Ints, Ints]:
    """Classes of labels and predictions of all workers at a step.

    Negative labels of a loss are left out: they are its `ignore_index`, which marks padding.
    """
    of_loss = labels.name not in _NAMES
    found = []
    for worker in labels.workers(step, mode):
        label = labels.value(step, mode, worker)
        scores = predictions.value(step, mode, worker)
        if max(label.size, scores.size) > _MOST_ELEMENTS:
            raise ValueError(f"a batch has more than {_MOST_ELEMENTS:,} elements")
        classes, predicted = classes_of(label, scores, argmax=False)
        counted = classes >= 0 if of_loss else np.ones(len(classes), dtype=np.bool_)
        found.append((classes[counted], predicted[counted]))
    first, second = (np.concatenate(each) for each in zip(*found, strict=True))
    return first, second


def _global_step(run: OpenRun, mode: ModeKeys, step: int) -> int:
    return step if mode is ModeKeys.GLOBAL else run.trial.global_step(mode, step)
