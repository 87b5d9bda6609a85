"""The example finds the fault in the faulty training, and none in the repaired one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mxnet_vanishing_gradient.py"


@pytest.mark.shows("MXNet: rules on real models", "values right")
def test_the_example_finds_what_it_planted(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), str(tmp_path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    faulty, repaired = printed.split("repaired")
    assert "VanishingGradient: issue" in faulty
    assert "LossNotDecreasing: issue" in faulty
    assert "issue:" not in repaired
