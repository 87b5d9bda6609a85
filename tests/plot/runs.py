"""Small runs for the tests of pictures, and parts of figures by their ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.trial import Trial, create_trial
from tests.trial.writer import RunWriter

Floats = npt.NDArray[np.float64]

HOSTILE = (
    "$\\frac{",
    "_hidden",
    "<script>alert(1)</script>",
    "a\nb\x1b[2J",
    "\"'><img src=x onerror=alert(1)>",
    "x" * 5000,
    "&lt;b&gt;",
    "100%",
)


def gradient(layer: int, step: int) -> Floats:
    """The gradient of a layer at a step: all elements have the same magnitude."""
    values: Floats = np.full(4, 10.0 ** (layer % 12 - 6) * (1 + step)) * np.array([1.0, -1.0, 1.0, -1.0])
    return values


def layered(place: Path, layers: int = 12, steps: int = 6, bad: tuple[int, int] | None = None) -> Trial:
    """A run with a gradient per layer, saved at every second step. bad: layer and first step with a NaN."""
    run = RunWriter(place)
    for number in range(steps):
        step = 2 * number
        for layer in range(layers):
            run.add(f"layers.{layer}.weight", np.ones(4), step=step, kind="weight", payload=False)
        for layer in reversed(range(layers)):
            values = gradient(layer, step)
            if bad is not None and layer == bad[0] and step >= bad[1]:
                values[0] = np.nan
            run.add(f"gradient/layers.{layer}.weight", values, step=step, kind="gradient", payload=False)
    run.flush()
    run.end()
    return create_trial(place, "layered")


def part(axes: Any, gid: str) -> Any:
    """The artist of the axes with this id."""
    (found,) = [each for each in axes.get_children() if each.get_gid() == gid]
    return found


def texts(figure: Any) -> str:
    """All visible texts of a figure."""
    figure._repr_png_()  # draws the figure, as a notebook does
    from matplotlib.text import Text

    return "\n".join(each.get_text() for each in figure.findobj(Text) if each.get_visible())
