"""value(step, device="cuda") of a run that was written before: the bytes of the file in a CuPy array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tdcore.trial import create_trial, cupy_arrays
from tests.trial.writer import RunWriter


@pytest.mark.parametrize(
    "dtype", ["?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16", ml_dtypes.bfloat16]
)
def test_the_real_cupy_holds_the_bits_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any
) -> None:
    pytest.importorskip("cupy")
    monkeypatch.setattr(cupy_arrays, "_PIECE_BYTES", 4096)  # several pieces
    values = (np.random.default_rng(0).standard_normal(9999) * 50).astype(dtype)
    run = RunWriter(tmp_path / "run")
    run.add("w", values, step=0)
    run.flush()
    run.end()
    array = create_trial(run.root).tensor("w").value(0, device="cuda")
    assert array.get().tobytes() == values.tobytes()
