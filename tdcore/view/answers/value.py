"""Answer `value`: the saved values of a tensor at one step, as an image, a heat map, a line or a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tdcore.errors import RunError
from tdcore.modes import ModeKeys
from tdcore.view.answers.packing import pack_floats
from tdcore.view.answers.places import at
from tdcore.view.answers.scope import Scope
from tdcore.view.answers.tensor import chosen_tensor

if TYPE_CHECKING:
    from tdcore.view.answers.catalog import TensorEntry
    from tdcore.view.answers.opened import OpenRun
    from tdcore.view.answers.parameters import Parameters

__all__ = ["PARAMETERS", "answer", "picture"]

PARAMETERS = ("name", "mode", "step", "worker", "columns")

Array = npt.NDArray[Any]

_CELLS = 256  # along each axis
_POINTS_PER_CELL = 16  # of a line, for each cell of an axis
_LEAST_IMAGE = 8  # height and width from which arrays with 1 or 3 channels are images
_PART = 1 << 20  # elements that are converted at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A part of a tensor that can be drawn.

    Attributes:
        form: "image", "heatmap", "line" or "number".
        values: Shape (height, width, channels), float64.
        shown: Which part of the tensor it is; "" for the whole tensor.
    """

    form: str
    values: Array
    shown: str


def answer(run: OpenRun, parameters: Parameters) -> dict[str, Any]:
    """`Value` of the contract. The default step is the newest with values."""
    name = chosen_tensor(run, parameters)
    entry = run.catalog.tensors[name]
    scope = Scope.of(run, [name], parameters, columns=_CELLS)
    mode = ModeKeys[scope.mode]
    tensor = run.trial.tensor(name) if entry.was_saved else None
    steps = tensor.steps(mode, show_incomplete_steps=True) if tensor is not None else []
    step = parameters.number("step", steps[-1] if steps else 0) or 0
    try:
        values = run.trial.tensor(name).value(step, mode, scope.worker or None)
    except RunError as error:
        return _answer(run, entry, scope, step, None, str(error))
    return _answer(run, entry, scope, step, values, "")


def picture(values: Array, kind: str, cells: int) -> Picture:
    """The picture of a tensor.

    Args:
        values: The values.
        kind: Kind of the tensor.
        cells: Maximum height and width. Of larger tensors, every n-th row and column is shown.
    """
    note = ""
    if values.dtype.kind == "c":
        values, note = np.abs(values), "magnitudes of complex numbers"
    if values.size == 1:
        return Picture(form="number", values=_wide(values).reshape(1, 1, 1), shown=note)
    if values.ndim == 1:
        part, every = _thinned(values, 0, cells * _POINTS_PER_CELL)
        return Picture(
            form="line", values=_wide(part).reshape(1, -1, 1), shown=_joined(note, _every(every, "element"))
        )
    if not values.size:
        return Picture(form="number", values=np.empty((0, 0, 1)), shown="the tensor has no elements")
    image = _image(values, cells) if kind in ("input", "output", "custom") else None
    if image is not None:
        return Picture(form="image", values=_wide(image[0]), shown=_joined(note, *image[1:]))
    matrix, what = _matrix(values, kind, cells)
    part, rows = _thinned(matrix, 0, cells)
    part, columns = _thinned(part, 1, cells)
    shown = _joined(note, what, _every(rows, "row"), _every(columns, "column"))
    return Picture(form="heatmap", values=_wide(part)[:, :, np.newaxis], shown=shown)


def _image(values: Array, cells: int) -> tuple[Array, str, str, str] | None:
    """(the first image, its channels last; descriptions of the part); None if the tensor is not an image."""
    if values.ndim not in (3, 4):
        return None
    first, which = (
        (values, "")
        if values.ndim == 3
        else (values[0], f"image 0 of {len(values)}" if len(values) > 1 else "")
    )
    if first.shape[0] in (1, 3) and min(first.shape[1:]) >= _LEAST_IMAGE:
        first = np.moveaxis(first, 0, -1)
    elif not (first.shape[2] in (1, 3) and min(first.shape[:2]) >= _LEAST_IMAGE):
        return None
    first, rows = _thinned(first, 0, cells)
    first, columns = _thinned(first, 1, cells)
    return first, which, _every(rows, "row"), _every(columns, "column")


def _matrix(values: Array, kind: str, cells: int) -> tuple[Array, str]:
    """A tensor as a matrix, and the description of the part that it is."""
    if values.ndim == 2:
        return values, ""
    shape = " x ".join(map(str, values.shape))
    if kind in ("weight", "gradient", "optimizer_state"):
        rest = int(np.prod(values.shape[1:]))
        step = max(1, rest // (cells * 16))  # before a copy of a large tensor
        return values.reshape(len(values), rest)[:, ::step], f"{shape} as {len(values)} x {rest}"
    place = (0,) * (values.ndim - 2)
    return values[place], f"slice [{', '.join(map(str, place))}] of {shape}"


def _thinned(values: Array, axis: int, most: int) -> tuple[Array, int]:
    """Every n-th entry of an axis, so that at most `most` remain, and n."""
    every = -(-values.shape[axis] // most)
    return (values, 1) if every <= 1 else (values[(slice(None),) * axis + (slice(None, None, every),)], every)


def _every(number: int, what: str) -> str:
    if number <= 1:
        return ""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"every {number}{ending} {what}"


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _wide(values: Array) -> Array:
    return np.asarray(values).astype(np.float64)


def _bad(values: Array) -> int:
    """Number of elements that are NaN or infinite."""
    if values.dtype.kind in "iub":
        return 0
    flat = values.reshape(-1)
    with np.errstate(all="ignore"):
        return sum(
            int(np.count_nonzero(~np.isfinite(np.abs(flat[start : start + _PART]).astype(np.float64))))
            for start in range(0, flat.size, _PART)
        )


def _answer(
    run: OpenRun, entry: TensorEntry, scope: Scope, step: int, values: Array | None, text: str
) -> dict[str, Any]:
    mode = scope.mode
    empty = Picture(form="number", values=np.empty((0, 0, 1)), shown="")
    drawn = empty if values is None else picture(values, entry.kind, scope.columns)
    height, width, channels = drawn.values.shape
    try:
        number = run.trial.global_step(ModeKeys[mode], step) if mode != "GLOBAL" else step
    except RunError:
        number = step
    return {
        "name": entry.name,
        "at": at(run.trial, mode, step, number),
        "shape": list(entry.shape if values is None else values.shape),
        "dtype": entry.dtype,
        "form": drawn.form,
        "height": height,
        "width": width,
        "channels": channels,
        "data": pack_floats(drawn.values),
        "shown": drawn.shown,
        "bad": 0 if values is None else _bad(values),
        "text": text,
    }
