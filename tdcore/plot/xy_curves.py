"""Picture of curves of one number over another, such as accuracy over size. Stateless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tdcore.plot.figures import COLOURS, RunFigure, add_legend, new_figure, plain, shown

__all__ = ["xy_curves"]

_HEIGHT = 3.6  # inches


def xy_curves(
    curves: Mapping[str, tuple[Any, Any]], *, x: str, y: str, title: str = "", limit: float | None = None
) -> RunFigure:
    """Draw curves with a mark at each point.

    Args:
        curves: Label of each curve -> x values and y values, each of shape (points,).
        x, y: Labels of the axes, with units.
        title: Title of the picture.
        limit: A value of y, drawn as a dashed line.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure, (axes,) = new_figure(_HEIGHT)
    for number, (label, (along, values)) in enumerate(curves.items()):
        axes.plot(along, values, marker="o", ms=4, color=COLOURS[number % len(COLOURS)], label=shown(label))
    if limit is not None:
        axes.axhline(limit, color="#555555", ls="--", lw=1, gid="limit", label=f"limit {limit:g}")
    plain(axes.set_xlabel(x))
    plain(axes.set_ylabel(y))
    axes.grid(alpha=0.3)
    plain(figure.suptitle(title, x=0.01, ha="left", fontsize="medium"))
    add_legend(axes)
    return figure
