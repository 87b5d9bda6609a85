"""Picture of projected points at several steps, one panel for each step. Stateless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tdcore.plot.figures import RunFigure, plain, shown

__all__ = ["point_clouds"]

_SIDE = 2.2  # inches of a panel


def point_clouds(rows: Mapping[str, Mapping[str, Any]], labels: Any, *, title: str = "") -> RunFigure:
    """Draw panels of points whose colours are their labels.

    Args:
        rows: Label of each row of panels -> title of each panel -> coordinates, shape (samples, 2).
        labels: Label of each sample, whole numbers, shape (samples,).
        title: Title of the picture.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    classes, colours = np.unique(np.asarray(labels), return_inverse=True)
    columns = max(map(len, rows.values()))
    figure = RunFigure(figsize=(columns * _SIDE + 0.9, len(rows) * _SIDE + 0.4), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for panels, (label, clouds) in zip(grid, rows.items(), strict=True):
        for axes in panels:
            axes.set_xticks([])
            axes.set_yticks([])
        for axes, (name, points) in zip(panels, clouds.items(), strict=False):
            artist = axes.scatter(*np.asarray(points).T, c=colours, cmap="tab10", s=5, vmin=-0.5, vmax=9.5)
            plain(axes.set_title(shown(name), fontsize="small"))
        plain(panels[0].set_ylabel(shown(label), fontsize="small"))
    handles, _ = artist.legend_elements(num=list(range(len(classes))))
    figure.legend(handles, classes.tolist(), loc="outside right upper", fontsize="small", frameon=False)
    plain(figure.suptitle(title, x=0.01, ha="left", fontsize="medium"))
    return figure
