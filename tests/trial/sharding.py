"""Sharded tensors for tests: partitions of an array into boxes, and runs whose workers have one box each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from tests.trial.writer import RunWriter, place

Array = npt.NDArray[Any]
Box = tuple[tuple[int, int], ...]

DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int8", "uint8", "bool")
_SPECIAL = (0.0, -0.0, 1.0, -3.5, 1e4, 6e-5, float("nan"), float("inf"), float("-inf"))


def workers(root: Path, number: int, **options: Any) -> list[RunWriter]:
    """Return writers of the ranks of one job."""
    return [RunWriter(root, worker=f"worker_{rank}", world_size=number, **options) for rank in range(number)]


def cut(values: Array, box: Box) -> Array:
    """Return the values in a box."""
    found: Array = values[tuple(slice(low, high) for low, high in box)]
    return found


def rows(shape: Sequence[int], number: int) -> list[Box]:
    """Return boxes of a tensor cut along its first dimension, as by FSDP2: the last boxes may be empty."""
    size = -(-shape[0] // number)
    lows = [min(rank * size, shape[0]) for rank in range(number)]
    return [((low, min(low + size, shape[0])), *((0, extent) for extent in shape[1:])) for low in lows]


def add_part(run: RunWriter, name: str, values: Array, box: Box, **options: Any) -> None:
    """Add one worker's row: the part of `values` in a box."""
    shard = place(values.shape, [low for low, _ in box])
    run.add(name, cut(values, box), shard=shard, **{"step": 0, **options})


def write_parts(root: Path, values: Array, boxes: Sequence[Box], name: str = "w", **options: Any) -> None:
    """Write a finished run in which each worker has the part of one tensor in its box."""
    for run, box in zip(workers(root, len(boxes)), boxes, strict=True):
        add_part(run, name, values, box, **options)
        run.flush()
        run.end()


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Array, list[Box]]:
    """Draw an array, and boxes that cover it, in any order; some may be empty, some may occur twice."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    elements = st.sampled_from(_SPECIAL) | st.floats(-100, 100, width=16)
    dtype = draw(st.sampled_from(DTYPES))
    size = int(np.prod(shape, dtype=np.int64))
    numbers = np.array(draw(st.lists(elements, min_size=size, max_size=size)), dtype=np.float64)
    boxes: list[Box] = [tuple((0, extent) for extent in shape)]
    for _ in range(draw(st.integers(0, 4)) if shape else 0):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        at = draw(st.integers(0, len(shape) - 1))
        where = draw(st.integers(*box[at]))
        spans = (box[at][0], where), (where, box[at][1])
        boxes += [(*box[:at], span, *box[at + 1 :]) for span in spans]
    boxes += draw(st.lists(st.sampled_from(boxes), max_size=3))
    return _as_dtype(numbers, dtype).reshape(shape), draw(st.permutations(boxes))


def _as_dtype(numbers: npt.NDArray[np.float64], dtype: str) -> Array:
    kind = np.dtype(getattr(ml_dtypes, dtype)) if dtype == "bfloat16" else np.dtype(dtype)
    if kind.kind in "iub":
        numbers = np.clip(np.nan_to_num(numbers), 0 if kind.kind == "u" else -100, 100)
    return numbers.astype(kind)
