"""Rates: the relative change of each weight per step, measured or estimated.

The change is measured if the values were saved. Otherwise the statistics give bounds; and if the optimizer's
hyperparameters were captured, the change is estimated from the learning rate, the gradient and the weight.
Threads: the thread that owns the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.rules.columns import Columns, Floats, Ints, Mask
from tdcore.rules.measures.series import group_codes
from tdcore.rules.measures.updates import WeightChanges, trained_weights, updates
from tdcore.rules.window import Window

__all__ = ["StepRate", "step_rates"]

_SMALLEST_NORM = 1e-12
_ADAM_LARGEST = 3.2  # (1 - beta1) / sqrt(1 - beta2) of the usual betas: the largest |m| / sqrt(v)
_PREFIX = "gradient/"
_PLACE = ("attempt", "worker", "mode_step")
_Place: TypeAlias = tuple[int, str, int]
_SGD, _ADAM = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRate:
    """Bounds `low` and `high` of the median relative change of all weights at one saved step.

    Attributes:
        row: Row of one of the weights.
        weights: Number of weights.
        how: "measured", "estimated" or "bounded".
    """

    attempt: int
    worker: str
    step: int
    row: int
    low: float
    high: float
    weights: int
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """Hyperparameters of one step: smallest and largest learning rate, momentum, class of the optimizer."""

    smallest: float
    largest: float
    momentum: float
    optimizer: str


def step_rates(window: Window) -> Iterator[StepRate]:
    """The rate of each attempt, worker and saved step with weights that can be compared, in order of steps.

    If some weights changed, weights that did not change are left out, because they are frozen or unused.
    Weights that started at zero are left out too, because their k-th update is about 1/k of their size for
    any learning rate.
    """
    found = updates(window, trained_weights(window))
    exact = found.least == found.most
    low, high, estimated = _intervals(window, found, exact)
    at = np.flatnonzero(found.norm > _SMALLEST_NORM)
    if not at.size:
        return
    columns = window.columns
    place = group_codes(columns, found.rows[at], *_PLACE)
    order = np.argsort(place, kind="stable")
    at, place = at[order], place[order]
    moved = found.most[at] > 0
    starts, sizes = _runs(place)
    used = moved | np.repeat(~np.logical_or.reduceat(moved, starts), sizes)
    at, place = at[used], place[used]
    starts, sizes = _runs(place)
    grown = _from_zero(window, found)[at]
    used = ~grown | np.repeat(np.logical_and.reduceat(grown, starts), sizes)
    at = at[used]
    starts, sizes = _runs(place[used])
    lows, highs = (_medians(values[at], starts, sizes).tolist() for values in (low, high))
    measured, guessed = (np.logical_and.reduceat(each[at], starts).tolist() for each in (exact, estimated))
    attempts, (workers, texts) = columns.ints("attempt"), columns.codes("worker")
    for number, row in enumerate(found.rows[at[starts]].tolist()):
        yield StepRate(
            attempt=int(attempts[row]),
            worker=texts[workers[row]] or "",
            step=int(columns.ints("step")[row]),
            row=row,
            low=lows[number],
            high=highs[number],
            weights=int(sizes[number]),
            how="measured" if measured[number] else "estimated" if guessed[number] else "bounded",
        )


def _from_zero(window: Window, found: WeightChanges) -> Mask:
    """Mask of the weights that were zero at an earlier step."""
    known: set[tuple[int, str, str]] = window.memory.setdefault("from zero", set())
    columns = window.columns

    def place(row: int) -> tuple[int, str, str]:
        return int(columns.ints("attempt")[row]), columns.text("worker", row), columns.text("name", row)

    known.update(place(row) for row in found.rows[found.norm == 0].tolist())
    if not known:
        return np.zeros(found.rows.size, dtype=np.bool_)
    return np.fromiter((place(row) in known for row in found.rows.tolist()), np.bool_, found.rows.size)


def _runs(sorted_: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """(start, length) of each run of equal numbers."""
    starts = np.flatnonzero(np.append(True, sorted_[1:] != sorted_[:-1]))
    return starts, np.diff(np.append(starts, sorted_.size))


def _medians(values: Floats, starts: Ints, sizes: Ints) -> Floats:
    """The median of each run of values. Runs of the same length are computed together."""
    found = np.empty(starts.size)
    for size in np.unique(sizes).tolist():
        these = np.flatnonzero(sizes == size)
        found[these] = np.median(values[starts[these, np.newaxis] + np.arange(size)], axis=1)
    return found


def _intervals(window: Window, found: WeightChanges, exact: Mask) -> tuple[Floats, Floats, Mask]:
    """(lower, upper, whether estimated) of the relative change per step of each weight."""
    with np.errstate(divide="ignore", invalid="ignore"):
        low = found.least / (found.norm * found.steps)
        high = found.most / (found.norm * np.sqrt(found.steps))
    estimated = np.zeros(found.rows.size, dtype=np.bool_)
    settings = {} if exact.all() else _settings(window)
    if not settings:
        return low, high, estimated
    columns = window.columns
    weight, norm = np.sqrt(columns.floats("square_sum")[found.rows]), _gradient_norms(window, found.rows)
    smallest, largest, momentum, kind = _at_rows(window, found.rows, settings)
    open_ = ~exact & (weight > _SMALLEST_NORM)
    at = np.flatnonzero(open_ & (kind == _SGD) & np.isfinite(norm))
    low[at] = _larger(low[at], smallest[at] * norm[at] / weight[at])
    high[at] = _larger(low[at], largest[at] * norm[at] / weight[at] / (1 - momentum[at]))
    estimated[at] = True
    at = np.flatnonzero(open_ & (kind == _ADAM))
    limit = _ADAM_LARGEST * largest[at] * np.sqrt(columns.floats("count")[found.rows[at]]) / weight[at]
    high[at] = np.fmin(high[at], _larger(low[at], limit))
    estimated[at] = True
    return low, high, estimated


def _larger(known: Floats, other: Floats) -> Floats:
    """Elementwise maximum; `known` where `other` is NaN."""
    return np.where(other > known, other, known)


def _at_rows(window: Window, rows: Ints, settings: Mapping[_Place, _Setting]) -> tuple[Any, ...]:
    """Per row: smallest and largest learning rate, momentum, kind of optimizer (0: unknown)."""
    columns = window.columns
    place = group_codes(columns, rows, *_PLACE)
    distinct, first = np.unique(place, return_index=True)
    table = np.zeros((4, int(distinct.max(initial=0)) + 1))
    for code, row in zip(distinct.tolist(), rows[first].tolist(), strict=True):
        setting = settings.get(_place(columns, row))
        if setting is not None:
            kind = _SGD if setting.optimizer == "SGD" else _ADAM if "Adam" in setting.optimizer else 0
            table[:, code] = setting.smallest, setting.largest, setting.momentum, kind
    return tuple(table[:, place])


def _settings(window: Window) -> dict[_Place, _Setting]:
    """The captured hyperparameters, by attempt, worker and step of the mode."""
    columns = window.columns
    rows = np.flatnonzero(window.kind("hyperparameter") & window.counted & (window.finite == 1))
    rates: dict[_Place, list[float]] = {}
    momenta: dict[_Place, float] = {}
    names: dict[_Place, str] = {}
    for row, value in zip(rows.tolist(), columns.floats("mean")[rows].tolist(), strict=True):
        place, key = _place(columns, row), columns.text("name", row).rpartition("/")[2]
        if key == "lr":
            rates.setdefault(place, []).append(value)
            names[place] = columns.text("origin", row).rpartition(".")[2]
        elif key == "momentum":
            momenta[place] = max(momenta.get(place, 0.0), min(value, 0.999))
    return {
        place: _Setting(
            smallest=min(values),
            largest=max(values),
            momentum=momenta.get(place, 0.0),
            optimizer=names[place],
        )
        for place, values in rates.items()
    }


def _place(columns: Columns, row: int) -> _Place:
    return int(columns.ints("attempt")[row]), columns.text("worker", row), int(columns.ints("mode_step")[row])


def _gradient_norms(window: Window, rows: Ints) -> Floats:
    """L2 norm of the gradient of each weight at its own step; NaN where there is none."""
    columns = window.columns
    codes, texts = columns.codes("name")
    position = {text: code for code, text in enumerate(texts)}
    own = np.array([position.get(f"{_PREFIX}{text}", -1) for text in texts], dtype=np.int64)
    gradients = np.flatnonzero(window.kind("gradient") & window.counted & (window.finite > 0))
    if not gradients.size:
        return np.full(rows.size, np.nan)
    keys = _places(window, gradients, codes[gradients])
    order = np.argsort(keys, kind="stable")
    wanted = _places(window, rows, own[codes[rows]])
    at = order[np.minimum(np.searchsorted(keys[order], wanted), order.size - 1)]
    norms = np.sqrt(columns.floats("square_sum")[gradients[at]])
    return np.where((keys[at] == wanted) & (own[codes[rows]] >= 0), norms, np.nan)


def _places(window: Window, rows: Ints, names: Ints) -> Ints:
    """One number for attempt, worker, step of the mode and name."""
    columns = window.columns
    workers, texts = columns.codes("worker")
    span = int(columns.ints("mode_step").max()) + 1
    number = columns.ints("attempt")[rows] * len(texts) + workers[rows]
    number = number * span + columns.ints("mode_step")[rows]
    return number * (len(columns.codes("name")[1]) + 1) + names
