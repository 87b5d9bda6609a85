"""Picture of a confusion matrix with precision and recall of each class. Stateless."""

from __future__ import annotations

from typing import Any

import numpy as np

from tdcore.analysis.confusion import Confusion
from tdcore.plot.figures import RunFigure, plain

__all__ = ["confusion_matrix"]

_CELL, _MARGIN = 0.42, 2.2  # inches
_MOST_CLASSES = 40  # with a number in each cell


def confusion_matrix(found: Confusion, title: str = "") -> RunFigure:
    """Draw a confusion matrix: labels in rows, predictions in columns, and shares of the labels as colours.

    The labels of the axes contain the recall of each row and the precision of each column, in percent.

    Args:
        found: The matrix, from tdcore.analysis.confusion.
        title: Title of the picture.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    size = len(found.classes)
    side = min(max(size * _CELL, 2.0), 10.0) + _MARGIN
    figure = RunFigure(figsize=(side, side), layout="constrained")
    axes = figure.subplots()
    shares = found.matrix / np.maximum(found.labels, 1)[:, np.newaxis]
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, gid="shares")
    if size <= _MOST_CLASSES:
        for row, column in zip(*np.nonzero(found.matrix), strict=True):
            colour = "white" if shares[row, column] > 0.5 else "#b2182b" if row != column else "black"
            axes.text(
                column,
                row,
                found.matrix[row, column],
                ha="center",
                va="center",
                color=colour,
                fontsize="small",
            )
    every = max(1, size // _MOST_CLASSES)
    ticks = np.arange(0, size, every)
    axes.set_xticks(ticks, _labels(found.classes[ticks], found.precision[ticks]), fontsize="small")
    axes.set_yticks(ticks, _labels(found.classes[ticks], found.recall[ticks]), fontsize="small")
    axes.set_xlabel("prediction (precision of the class below it)")
    axes.set_ylabel("label (recall of the class below it)")
    plain(axes.set_title(title, fontsize="medium", loc="left"))
    return figure


def _labels(classes: Any, shares: Any) -> list[str]:
    return [
        f"{name}\n{'none' if np.isnan(share) else f'{share:.0%}'}"
        for name, share in zip(classes.tolist(), shares.tolist(), strict=True)
    ]
