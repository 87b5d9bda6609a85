"""Picture of images and of maps over them, such as saliency maps: a grid with a row per kind. Stateless."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tdcore.plot.figures import RunFigure, plain

__all__ = ["image_maps"]

_SIDE = 1.1  # inches of one image


def image_maps(rows: Mapping[str, Any], titles: Sequence[str] = (), *, title: str = "") -> RunFigure:
    """Draw images and maps: one row for each entry of `rows`, one column for each image.

    Each map has its own colour scale, from its smallest to its largest value. The first row is in grey.

    Args:
        rows: Label of the row -> images, shape (images, height, width).
        titles: A title for each column.
        title: Title of the picture.

    Raises:
        ValueError: The rows have different numbers of images, or none.
        ConfigError: matplotlib is not installed.
    """
    images = [np.asarray(each) for each in rows.values()]
    numbers = {len(each) for each in images}
    if len(numbers) != 1 or 0 in numbers:
        raise ValueError(
            f"every row needs the same number of images, at least one; they have {sorted(numbers)}"
        )
    (columns,) = numbers
    figure = RunFigure(figsize=(columns * _SIDE + 0.6, len(images) * _SIDE + 0.7), layout="constrained")
    grid = figure.subplots(len(images), columns, squeeze=False)
    for row, (label, values) in enumerate(zip(rows, images, strict=True)):
        for column, axes in enumerate(grid[row]):
            axes.imshow(values[column], cmap="gray" if row == 0 else "inferno", interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            if row == 0 and column < len(titles):
                plain(axes.set_title(titles[column], fontsize="small"))
        plain(grid[row][0].set_ylabel(label, fontsize="small"))
    plain(figure.suptitle(title, x=0.01, ha="left", fontsize="medium"))
    return figure
