"""The arithmetic for large models in docs/gpu.md, computed again from the sizes and rates on the page."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "gpu.md").read_text()

# Model, parameters of one GPU, rows (a weight and a gradient for each tensor), seconds of a step, GPUs.
MODELS = (
    ("1 B, one GPU", 1e9, 2 * 200, 0.5, 1),
    ("7 B, one GPU", 7e9, 2 * 291, 2.0, 1),
    ("70 B, sharded over 8 GPUs", 70e9 / 8, 2 * 723, 10.0, 8),
)
DTYPES = (("float32", 4), ("bfloat16", 2))
PCIE = (25e9, 50e9)  # bytes per second of PCIe 4 and 5
SINKS = (0.5e9, 2e9, 5e9, 0.2e9)  # of the machine: three disks, S3
USABLE = 0.8
ROW_BYTES = 56


def number(value: float) -> str:
    """Two significant digits; whole numbers from 10 on."""
    if value >= 10:
        return f"{round(value):,}"
    return f"{float(f'{value:.2g}'):g}"


def row_of(model: tuple[str, float, int, float, int], dtype: tuple[str, int]) -> str:
    """The row of the first table."""
    name, parameters, _, _, gpus = model
    size = parameters * dtype[1]
    times = [*(size / rate for rate in PCIE), *(size * gpus / rate for rate in SINKS)]
    return (
        f"| {name} | {dtype[0]} | {number(size / 1e9)} GB | "
        + " | ".join(f"{number(t)} s" for t in times)
        + " |"
    )


def interval_row(model: tuple[str, float, int, float, int], dtype: tuple[str, int]) -> str:
    """The row of the second table."""
    name, parameters, rows, seconds, gpus = model
    size = parameters * dtype[1] * gpus
    fits = [f"{math.ceil(size / (USABLE * rate * seconds)):,}" for rate in SINKS]
    cells = [name, dtype[0], f"{number(seconds)} s", *fits, f"{number(rows * ROW_BYTES / 1e3)} kB"]
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype[0])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model[0])
def test_the_arithmetic_for_large_models_is_right(
    model: tuple[str, float, int, float, int], dtype: tuple[str, int]
) -> None:
    assert row_of(model, dtype) in PAGE.splitlines()
    assert interval_row(model, dtype) in PAGE.splitlines()
