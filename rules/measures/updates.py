"""WeightChanges: the changes of weights between two saved steps, from values, or bounds from statistics.

The window's memory stores each weight at the steps with which later steps are compared: its statistics, and
its values if they are saved. Any thread that owns the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.columns import Floats, Ints, Mask
from tdcore.rules.measures.previous_step import LAYER, forget, step_pairs
from tdcore.rules.measures.reading import read_values
from tdcore.rules.measures.series import groups
from tdcore.rules.window import Window

__all__ = ["Gradients", "WeightChanges", "change_bounds", "trained_weights", "updates"]

_COLUMNS = ("mode_step", "count", "min", "max", "mean", "m2", "abs_sum", "square_sum")
_MODES = ("TRAIN", "GLOBAL")
_PREFIX = "gradient/"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightChanges:
    """Changes of weights, one array element per row, in order of rows.

    Attributes:
        rows: Rows of the newer saves.
        least, most: Bounds of the L2 norm of the change; equal if values were read.
        norm: L2 norm of the earlier weight.
        since: Step of the mode of the earlier save.
        steps: Number of steps between the two saves.
    """

    rows: Ints
    least: Floats
    most: Floats
    norm: Floats
    since: Ints
    steps: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWeight:
    """A weight at one saved step. numbers: the values of _COLUMNS."""

    numbers: npt.NDArray[np.float64]
    values: npt.NDArray[Any] | None

    @property
    def step(self) -> int:
        """Step of the mode."""
        return int(self.numbers[0])


def trained_weights(window: Window) -> Mask:
    """Weights of TRAIN or GLOBAL mode with finite statistics. Other weights are counted as missing."""
    trained = window.columns.where("mode", _MODES.__contains__)
    weights = window.in_collections(["weights"]) & window.ok & trained
    window.missing("weight saved without statistics", int(np.sum(weights & ~window.counted)))
    finite: Mask = weights & window.counted & (window.finite == window.columns.floats("count"))
    return finite


def updates(window: Window, wanted: Mask, num_steps: int | None = None) -> WeightChanges:
    """The change of each wanted weight since an earlier saved step.

    Saved values are read, unless the statistics of both saves are bitwise equal.

    Args:
        window: The window.
        wanted: Rows of weights.
        num_steps: None: compare with the previous save. n: compare with the oldest save at most n steps back.
    """
    codes, texts = window.columns.codes("name")
    saves: dict[tuple[object, ...], list[SavedWeight]] = window.memory.setdefault("saves", {})
    followed = {layer[3] for layer in saves}
    one_by_one = np.array([num_steps is not None or text in followed for text in texts], dtype=np.bool_)
    one_by_one[codes[wanted & window.columns.present("nbytes")]] = True
    bulk = step_pairs(window, wanted & ~one_by_one[codes], _COLUMNS, "statistics")
    known = bulk.known & (bulk.now["mode_step"] > bulk.before["mode_step"])  # leave out late rows
    least, most = (each[known] for each in change_bounds(bulk.now, bulk.before))
    now, since = bulk.now["mode_step"][known], bulk.before["mode_step"][known]
    norm_before = np.sqrt(bulk.before["square_sum"][known])
    found = [
        (int(row), float(low), float(high), float(norm), int(since), int(step - since))
        for row in np.flatnonzero(wanted & one_by_one[codes]).tolist()
        for low, high, norm, since, step in _compared(window, row, saves, num_steps)
    ]
    forget(window, saves)
    row, *rest = zip(*found, strict=True) if found else ((), (), (), (), (), ())
    joined = [bulk.rows[known], least, most, norm_before, since, now - since]
    every = [np.concatenate([one, np.array(two)]) for one, two in zip(joined, (row, *rest), strict=True)]
    order = _ascending(every[0].astype(np.int64), len(window))
    rows, least, most, norm, since, steps = (each[order] for each in every)
    whole = [each.astype(np.int64) for each in (rows, since, steps)]
    return WeightChanges(rows=whole[0], least=least, most=most, norm=norm, since=whole[1], steps=whole[2])


def _ascending(rows: Ints, number: int) -> Ints:
    """The positions that sort `rows`, which are distinct and smaller than `number`."""
    position = np.full(number, -1, dtype=np.int64)
    position[rows] = np.arange(rows.size)
    return position[position >= 0]


def _compared(
    window: Window, row: int, kept: dict[tuple[object, ...], list[SavedWeight]], num_steps: int | None
) -> list[tuple[float, float, float, int, int]]:
    """(least, most, earlier norm, earlier step, step) of one row; empty at the first save of a weight."""
    layer = window.layer(row)
    saves = kept.setdefault(layer, [])
    if not saves and (older := window.memory["statistics"].pop(layer, None)) is not None:
        saves.append(SavedWeight(numbers=older, values=None))
    numbers = np.array([window.columns.floats(name)[row] for name in _COLUMNS])
    step = int(numbers[0])
    saves[:] = [save for save in saves if save.step < step]
    if num_steps is None:
        del saves[:-1]
    else:
        saves[:] = [save for save in saves if save.step >= step - num_steps]
    same = bool(saves) and bool(np.array_equal(saves[-1].numbers[1:], numbers[1:]))
    now = SavedWeight(numbers=numbers, values=saves[-1].values if same else _values(window, row))
    saves.append(now)
    before = saves[0]
    if before is now:
        return []
    norm = float(np.sqrt(before.numbers[-1]))
    if before.values is not None and now.values is not None and before.values.shape == now.values.shape:
        change = float(np.linalg.norm(now.values.astype(np.float64) - before.values))
        return [(change, change, norm, before.step, step)]
    alone = (dict(zip(_COLUMNS, each[:, np.newaxis], strict=True)) for each in (numbers, before.numbers))
    (low,), (high,) = change_bounds(*alone)
    return [(float(low), float(high), norm, before.step, step)]


def _values(window: Window, row: int) -> npt.NDArray[Any] | None:
    """Values of one row in single precision, or in double precision if saved so; None if not saved."""
    if not window.columns.present("nbytes")[row]:
        return None
    values = read_values(window, row, "weight")
    if values is None:
        return None
    return np.array(values, dtype=np.float64 if values.dtype.itemsize == 8 else np.float32)


def change_bounds(new: Mapping[str, Floats], old: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """Bounds of the norm of the change, from _COLUMNS of the two saves."""
    with np.errstate(invalid="ignore", over="ignore"):
        norm, norm_before = np.sqrt(new["square_sum"]), np.sqrt(old["square_sum"])
        mean = np.abs(new["mean"] - old["mean"]) * np.sqrt(new["count"])
        least = np.maximum(np.abs(norm - norm_before), mean)
        for name in ("min", "max"):
            least = np.maximum(least, np.abs(new[name] - old[name]))
        most = norm + norm_before
    same = np.logical_and.reduce([new[name] == old[name] for name in _COLUMNS[1:]])
    least[same], most[same] = 0.0, 0.0
    resized = new["count"] != old["count"]
    least[resized], most[resized] = 0.0, np.inf  # another shape: there is no bound
    return least, most


class Gradients:
    """Steps at which weights had a non-zero gradient. The memory stores the newest step of each weight."""

    def __init__(self, window: Window) -> None:
        columns = window.columns
        self._window = window
        self._absent = columns.where("status", lambda status: status == "absent")
        rows = window.kind("gradient") & columns.where("name", lambda name: name.startswith(_PREFIX))
        rows &= columns.where("mode", _MODES.__contains__) & (self._absent | window.counted)
        self._rows: dict[tuple[int, str, str], Ints] = {}
        for attempt, worker, _, name, _, group in groups(columns, np.flatnonzero(rows), *LAYER):
            self._rows[attempt, worker, name.removeprefix(_PREFIX)] = group
        self._kept: dict[tuple[int, str, str], tuple[int, bool]] = window.memory.get("gradients", {})

    def moved(self, row: int, since: int) -> bool | None:
        """Whether the last gradient before the step of this weight row was not zero.

        None if no gradient was captured at step `since` of the mode or later.
        """
        attempt, worker, _, name, _ = self._window.layer(row)
        step = int(self._window.columns.ints("mode_step")[row])
        there = self._rows.get((attempt, worker, name), np.empty(0, dtype=np.int64))
        at = int(np.searchsorted(self._window.columns.ints("mode_step")[there], step))
        last = self._of(int(there[at - 1])) if at else self._kept.get((attempt, worker, name))
        return None if last is None or last[0] < since else last[1]

    def keep(self) -> None:
        """Store the newest gradient of each weight in the memory, for the next window."""
        newest = {key: self._of(int(group[-1])) for key, group in self._rows.items()}
        kept = self._window.memory["gradients"] = self._kept | newest
        forget(self._window, kept)

    def _of(self, row: int) -> tuple[int, bool]:
        columns = self._window.columns
        alive = not self._absent[row] and columns.floats("abs_max")[row] != 0
        return int(columns.ints("mode_step")[row]), bool(alive)
