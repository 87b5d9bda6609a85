"""Initial: measures of weights, activations and gradients that depend on the initialisation of a network.

Threads: the thread that owns the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tdcore.rules.columns import Floats, Ints
from tdcore.rules.measures.early_steps import EarlySteps
from tdcore.rules.measures.reading import read_values
from tdcore.rules.window import Window

__all__ = ["equal_weights", "gradient_ranges", "matrices", "variances"]

_MIN_ELEMENTS = 20


def variances(window: Window, rows: Ints) -> tuple[Ints, Floats]:
    """(rows, population variance of each row), in order; rows without a variance above 0 are left out."""
    with np.errstate(divide="ignore", invalid="ignore"):
        values = window.columns.floats("m2")[rows] / window.finite[rows]
    some = np.isfinite(values) & (values > 0)
    return rows[some], values[some]


def gradient_ranges(window: Window, rows: Ints) -> tuple[Ints, Floats]:
    """(rows, p95 - p5 of the elements of each row), for gradients of 20 or more elements, most not zero.

    Computed from the values if they were saved. Otherwise it is an upper bound: twice the upper edge of the
    histogram bin that contains p95 of the magnitudes.
    """
    columns = window.columns
    count, zeros = columns.floats("count")[rows], columns.floats("zero_count")[rows]
    bias = columns.where("name", lambda name: name.endswith("bias"))[rows]
    rows = rows[~bias & (count >= _MIN_ELEMENTS) & (window.finite[rows] == count) & (2 * zeros <= count)]
    edges = 2.0 ** (columns.histograms(rows).quantile(0.95) + 1)
    ranges = 2.0 * np.minimum(edges, columns.floats("abs_max")[rows])
    saved = columns.present("nbytes")[rows]
    for at in np.flatnonzero(saved).tolist():
        values = read_values(window, int(rows[at]), "gradient")
        if values is not None:
            low, high = np.percentile(values.astype(np.float64), [5, 95])
            ranges[at] = high - low
    return rows, ranges


def equal_weights(window: Window, rows: Ints, opening: EarlySteps) -> Iterator[tuple[int, str]]:
    """(row, description of the equal parts) for weights that start with equal parts.

    rows: weights with two or more axes, see `matrices`.

    The first saved step is checked. Weights of zeros are checked at the third saved step, because the first
    learning rate of a warm-up may be 0.
    """
    columns = window.columns
    for row in rows.tolist():
        name = columns.text("name", row)
        zero = columns.floats("abs_max")[row] == 0
        if len(opening.steps) == 1:
            if zero:
                opening.zeros.add(name)
                continue
            alike = _alike(window, row)
        else:
            opening.zeros -= set() if zero else {name}
            alike = "weights" if zero and name in opening.zeros and len(opening.steps) == 3 else ""
        if alike:
            yield row, alike


def matrices(window: Window, rows: Ints) -> npt.NDArray[np.bool_]:
    """Mask of the rows of the window that are among `rows`, and have two or more axes and several neurons."""
    found = np.zeros(len(window), dtype=np.bool_)
    shapes = window.columns.table.column("shape").take(pa.array(rows)).combine_chunks()
    if len(rows):
        axes = np.asarray(pc.fill_null(pc.list_value_length(shapes), 0).to_numpy(zero_copy_only=False))
        some = axes >= 2
        rows, shapes = rows[some], shapes.filter(pa.array(some))
        neurons = np.asarray(pc.list_element(shapes, 0).to_numpy(zero_copy_only=False), dtype=np.int64)
        found[rows[(neurons >= 2) & (window.finite[rows] > neurons)]] = True
    return found


def _alike(window: Window, row: int) -> str:
    if window.columns.floats("min")[row] == window.columns.floats("max")[row]:
        return "weights"
    if not window.columns.present("nbytes")[row]:
        return ""
    values: npt.NDArray[Any] | None = read_values(window, row, "weight")
    if values is None:
        return ""
    shape = window.columns.table.column("shape")[row].as_py()
    neurons = np.reshape(values, (shape[0], -1))
    if bool(np.all(neurons == neurons[:, :1])):
        return "weights within each neuron"
    depthwise = len(shape) > 2 and shape[1] == 1  # each filter has its own input channel
    return "neurons" if not depthwise and bool(np.all(neurons == neurons[:1])) else ""
