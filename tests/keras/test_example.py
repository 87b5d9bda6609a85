"""The example of a network with dead units runs, and its rules find the fault only where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("keras", reason="stage keras of .ci/run has Keras")

from tests.keras.cases import shows

ROOT = Path(__file__).resolve().parents[2]


@shows("rules on real models", "values right")
def test_the_example_finds_the_dead_units_of_the_faulty_network_only(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "keras_dead_relu.py", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    faulty, _, repaired = done.stdout.partition("repaired:")
    assert "DeadRelu: issue" in faulty
    assert "DeadRelu: no issue" in repaired
    assert "32 of 32 units" in faulty
