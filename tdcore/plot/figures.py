"""Figures without pyplot, safe texts, and the parts that several pictures share. Functions without state.

Names come from runs that others wrote. In matplotlib a text with "$" is a formula, and a label that begins
with "_" is left out of legends. `plain` turns formulas off, and `shown` returns texts that legends contain.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.errors import ConfigError
from tdcore.modes import ModeKeys
from tdcore.text.did_you_mean import did_you_mean
from tdcore.text.quoting import quoted
from tdcore.view.answers.buckets import StepColumns, reduced

try:
    from matplotlib.figure import Figure
except ImportError as _error:
    raise ConfigError(
        f'pictures need matplotlib, which cannot be imported ({_error}): pip install "tdcore-capture[plot]"'
    ) from _error

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = [
    "COLOURS",
    "Axes",
    "Curve",
    "RunFigure",
    "add_legend",
    "chosen_mode",
    "draw_curve",
    "draw_panel",
    "edges_of",
    "empty_figure",
    "log_if_positive",
    "modes_of",
    "names_of_kind",
    "new_figure",
    "plain",
    "rows_that_fit",
    "set_title",
    "shown",
    "step_axis",
]

Axes: TypeAlias = Any  # matplotlib has no types in all of its versions
Floats = npt.NDArray[np.float64]

# Colours of Okabe and Ito, which people with colour-blindness can distinguish; without black and yellow.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_WIDTH = 9.0  # inches
_MOST_COLUMNS = 900  # points of a curve
_LONGEST = 48  # characters of a name
_DPI = 100
_BELOW = 34  # distance of a legend from its axes, in points: below the label of the x axis


class Curve(NamedTuple):
    """Values over steps: a line of a picture. options: of Axes.plot()."""

    steps: npt.NDArray[Any]
    values: Floats
    colour: str
    label: str
    options: Mapping[str, Any] = MappingProxyType({})


class RunFigure(Figure):
    """A figure that notebooks display also if their display of pyplot's figures is not active."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png", dpi=_DPI)
        return data.getvalue()


def new_figure(height: float, rows: int = 1, **options: Any) -> tuple[RunFigure, list[Axes]]:
    """A figure with `rows` axes, one below the other. height: in inches. options: of Figure.subplots()."""
    figure = RunFigure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False, **options)
    return figure, list(axes[:, 0])


def empty_figure(trial: Trial, what: str, reason: str) -> RunFigure:
    """A figure that contains the reason why there is nothing to draw."""
    figure, (axes,) = new_figure(2.2)
    set_title(figure, trial, what)
    axes.set_axis_off()
    plain(
        axes.text(
            0.5, 0.5, quoted(reason, 300), ha="center", va="center", wrap=True, transform=axes.transAxes
        )
    )
    return figure


def shown(name: object, longest: int = _LONGEST) -> str:
    """A name in one line; the middle of a long name is left out."""
    text = quoted(name)
    if len(text) > longest:
        head = (longest - 1) // 2
        text = f"{text[:head]}…{text[len(text) - (longest - 1 - head) :]}"
    return f" {text}" if text.startswith("_") else text


def plain(text: Any) -> Any:
    """Turn off formulas in a text of a figure."""
    text.set_parse_math(False)
    text.set_usetex(False)
    return text


def set_title(figure: RunFigure, trial: Trial, what: str, note: str = "") -> None:
    """The title of a figure: the run and the content, and in a second line a note."""
    title = f"{shown(trial.name)}: {what}" + (f"\n{note}" if note else "")
    plain(figure.suptitle(title, x=0.01, ha="left", fontsize="medium"))


def step_axis(axes: Axes, mode: str) -> None:
    """Label the x axis with the steps of a mode. Ticks are whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(f"{mode} step")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    axes.xaxis.get_major_formatter().set_useOffset(False)


def log_if_positive(axes: Axes, values: Iterable[Floats]) -> None:
    """Use a logarithmic y axis if all finite values are positive and differ by more than a factor of 3."""
    finite = np.concatenate([np.empty(0), *(each[np.isfinite(each)] for each in values)])
    if finite.size and finite.min() > 0 and finite.max() / finite.min() > 3:
        axes.set_yscale("log")


def draw_curve(axes: Axes, steps: Any, values: Floats, *, colour: str, label: str, **options: Any) -> Any:
    """Draw values over steps as a line, and return the line.

    With more steps than pixels, the line is the mean of each pixel column, and an area is its range. A cross
    at the upper edge marks a value that is NaN or infinite.

    Args:
        axes: Axes to draw into.
        steps: Step of each value.
        values: The values.
        colour: Colour of the line.
        label: Label for the legend.
        options: Of Axes.plot().
    """
    over = StepColumns.over(steps, _MOST_COLUMNS)
    found = reduced(values, over.of_row, len(over))
    marker = "o" if len(over) <= 40 else None
    (line,) = axes.plot(over.first, found.mean, color=colour, marker=marker, ms=3, label=label, **options)
    if len(over) < len(values) and (found.max > found.min).any():
        axes.fill_between(over.first, found.min, found.max, color=colour, alpha=0.2, lw=0)
    bad = np.unique(np.asarray(steps)[~np.isfinite(values)])
    if bad.size:
        axes.plot(
            bad, np.full(len(bad), 0.97), "x", color=colour, ms=5, transform=axes.get_xaxis_transform(),
            label=f"{label}: NaN or infinite", gid="bad",
        )  # fmt: skip
    return line


def draw_panel(axes: Axes, curves: Sequence[Curve], *, mode: str, label: str) -> None:
    """Draw curves by steps of a mode with grid and labels; add_legend() comes after further marks.

    label: of the y axis. It is logarithmic if all values are positive and differ by more than a factor of 3.
    """
    for curve in curves:
        draw_curve(axes, curve.steps, curve.values, colour=curve.colour, label=curve.label, **curve.options)
    log_if_positive(axes, [curve.values for curve in curves])
    step_axis(axes, mode)
    plain(axes.set_ylabel(label))
    axes.grid(alpha=0.3)


def add_legend(axes: Axes, *, most: int = 12) -> None:
    """Add a legend below the axes. most: number of entries; the others are counted in the last one."""
    from matplotlib.transforms import ScaledTranslation

    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    if len(handles) > most:
        labels = [*labels[: most - 1], f"and {len(handles) - most + 1} more"]
        handles = handles[:most]
    columns = 1 if max(map(len, labels)) > 40 else 2 if max(map(len, labels)) > 20 else 3
    below = axes.transAxes + ScaledTranslation(0.0, -_BELOW / 72, axes.figure.dpi_scale_trans)
    legend = axes.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.0, 0.0), bbox_transform=below, ncols=columns,
        fontsize="small", frameon=False, borderaxespad=0.0,
    )  # fmt: skip
    for text in legend.get_texts():
        plain(text)


def edges_of(first: Any, last: Any) -> Floats:
    """Edges of pixel columns on the axis of steps: between two columns, the middle of the gap.

    first, last: first and last step of each column; at least one.
    """
    first, last = np.asarray(first, dtype=np.float64), np.asarray(last, dtype=np.float64)
    inner = (last[:-1] + first[1:]) / 2
    if not inner.size:
        return np.array([first[0] - 0.5, last[0] + 0.5])
    begin = max(first[0] - max(0.5, inner[0] - last[0]), min(first[0], 0.0) - 0.5)
    end = last[-1] + max(0.5, first[-1] - inner[-1])
    return np.concatenate([[begin], inner, [end]])


def modes_of(trial: Trial, names: Sequence[str]) -> list[str]:
    """Modes in which these tensors have rows, TRAIN first."""
    wanted = set(names)
    found = {mode for name, mode in trial.combinations(("name", "mode")) if name in wanted}
    return [mode.name for mode in ModeKeys if mode.name in found]


def names_of_kind(trial: Trial, *kinds: str) -> list[str]:
    """Names of the tensors of these kinds, in the order of the model."""
    return trial.in_model_order(
        dict.fromkeys(name for name, kind in trial.combinations(("name", "kind")) if kind in kinds)
    )


def chosen_mode(modes: Sequence[str], mode: str | ModeKeys | None) -> str:
    """The mode of a picture. Raises ConfigError if the tensors have no rows in this mode."""
    if mode is None:
        return modes[0] if modes else ModeKeys.TRAIN.name
    name = mode.name if isinstance(mode, ModeKeys) else str(mode).upper()
    if name not in modes:
        there = ", ".join(modes) or "none"
        raise ConfigError(f"mode is {mode!r}; the tensors have rows in: {there}{did_you_mean(name, modes)}")
    return name


def rows_that_fit(inches: float, points: float) -> int:
    """Number of lines of text in a height. points: size of the text."""
    return max(1, math.floor(inches * 72 / (points * 1.35)))
