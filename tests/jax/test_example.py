"""The example of a learning rate that is too high runs, and its rules find the fault only where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="stage keras of .ci/run has JAX")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.shows("JAX: rules on real models", "values right")
def test_the_example_finds_the_values_that_grow_without_end_in_the_faulty_network_only(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "jax_exploding_gradient.py", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    faulty, _, repaired = done.stdout.partition("repaired:")
    assert "FirstNonFinite: issue" in faulty
    assert "FirstNonFinite: no issue" in repaired
    assert "LossNotDecreasing: no issue" in repaired
