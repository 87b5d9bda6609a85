"""Answers about one tensor: `tensor`, its history and newest statistics; and `histogram`.

The stored histograms take most of the time to read, so the page requests them after the history.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tdcore.rules.measures.histogram import Histograms
from tdcore.trial.run_notes import absent_text
from tdcore.view.answers.arrow import valid
from tdcore.view.answers.buckets import StepColumns, points
from tdcore.view.answers.frame import Frame, load_frame
from tdcore.view.answers.histograms import log_histogram, quantile_curves
from tdcore.view.answers.places import at, finding_json
from tdcore.view.answers.scope import Scope, preferred
from tdcore.view.answers.statistics import COMMON

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tdcore.view.answers.opened import OpenRun
    from tdcore.view.answers.parameters import Parameters

__all__ = ["PARAMETERS", "answer", "chosen_tensor", "histogram"]

PARAMETERS = ("name", "mode", "worker", "from", "to", "columns")

_COLUMNS = 400
_CURVES = ("mean", "std", "min", "max", "l2")
_LISTED = (*_CURVES, "rms", "abs_mean", "abs_max", "zero_share", "bad_count")
_NUMBERS = ("min", "max", "mean", "m2", "abs_sum", "square_sum", "abs_max", "zero_count")
_MORE = ("nbytes", "reason")
_OF_HISTOGRAMS = ("abs_min", "abs_max", "zero_count")
_MOST_STEPS = 1000
_NEWEST = 50
_FIRST_KINDS = ("gradient", "weight", "output", "loss")


def answer(run: OpenRun, parameters: Parameters) -> dict[str, Any]:
    """`TensorPage` of the contract."""
    name = chosen_tensor(run, parameters)
    scope = Scope.of(run, [name], parameters, columns=_COLUMNS)
    more = (*_MORE, "worker") if scope.worker or len(scope.workers) < 2 else _MORE
    every = load_frame(
        run.trial,
        [name],
        mode=scope.mode,
        worker=scope.worker,
        columns=_NUMBERS,
        steps=scope.steps,
        more=more,
    )
    frame = every.taken(np.flatnonzero(every.counted))
    curves = {
        each: points(frame.steps, frame.values(COMMON[each]), scope.columns, bad=frame.bad)
        for each in _CURVES
    }
    return {
        "tensor": run.catalog.tensors[name].to_json(),
        "mode": scope.mode,
        "modes": scope.modes,
        "worker": scope.worker,
        "workers": scope.workers,
        **curves,
        "saved_steps": list(_saved_steps(run, every, scope.mode)),
        "rows": list(_newest_rows(run, every, scope.mode)),
        "findings": [finding_json(each) for each in run.findings if each.tensor == name],
        "absent": _why_absent(run, name, every),
    }


def histogram(run: OpenRun, parameters: Parameters) -> dict[str, Any]:
    """`TensorHistogram` of the contract."""
    name = chosen_tensor(run, parameters)
    scope = Scope.of(run, [name], parameters, columns=_COLUMNS)
    every = load_frame(
        run.trial,
        [name],
        mode=scope.mode,
        worker=scope.worker,
        columns=_OF_HISTOGRAMS,
        steps=scope.steps,
        more=("log2_first", "log2_counts"),
    )
    frame = every.taken(np.flatnonzero(every.counted))
    histograms = Histograms.of(frame.table, np.arange(len(frame)))
    return {
        "name": name,
        "mode": scope.mode,
        "modes": scope.modes,
        "worker": scope.worker,
        "quantiles": quantile_curves(frame, histograms, scope.columns),
        "histogram": log_histogram(frame, histograms, StepColumns.over(frame.steps, scope.columns)),
    }


def chosen_tensor(run: OpenRun, parameters: Parameters) -> str:
    """The tensor that a request names. By default the first with a finding, else a gradient or a weight.

    Raises ConfigError if the run has no such tensor.
    """
    tensors = run.catalog.tensors
    default = next((each.tensor for each in run.findings if each.tensor in tensors), None)
    if default is None:
        kind = preferred(run.catalog.kinds, _FIRST_KINDS)
        default = next(iter(run.catalog.of_kind(kind)), None) if kind else None
    name = parameters.choice("name", list(tensors), default)
    if not name:
        raise parameters.wrong("name", "", "the run has no tensors")
    return name


def _saved_steps(run: OpenRun, frame: Frame, mode: str) -> Iterator[dict[str, Any]]:
    """`At` of steps with values, at most 1,000, evenly spread."""
    rows = np.flatnonzero(valid(frame.table, "nbytes"))
    steps, first = np.unique(frame.steps[rows], return_index=True)
    if not len(steps):
        return
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MOST_STEPS)).round().astype(np.int64))
    for each in chosen.tolist():
        yield at(run.trial, mode, int(steps[each]), int(frame.global_steps[rows[first[each]]]))


def _newest_rows(run: OpenRun, frame: Frame, mode: str) -> Iterator[dict[str, Any]]:
    """`StatisticsRow` of the newest rows, the newest first."""
    start = max(0, len(frame) - _NEWEST)
    newest = frame.taken(np.arange(start, len(frame)))
    values = {each: newest.values(COMMON[each]) for each in _LISTED}
    texts = newest.table.select(
        [name for name in ("status", "reason", "worker") if name in newest.table.column_names]
    )
    for row, fields in reversed(list(enumerate(texts.to_pylist()))):
        yield {
            "at": at(run.trial, mode, int(newest.steps[row]), int(newest.global_steps[row])),
            "worker": fields.get("worker") or "",
            "status": fields["status"],
            "reason": fields["reason"] or "",
            "values": {each: _plain(values[each][row]) for each in _LISTED},
        }


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _why_absent(run: OpenRun, name: str, frame: Frame) -> str:
    """Why the tensor has no value at its newest step; "" if it has one."""
    if not len(frame):
        return run.trial.why_absent(name).removeprefix(": ")
    if not frame.absent[-1]:
        return ""
    return absent_text(frame.table.column("reason")[-1].as_py())
