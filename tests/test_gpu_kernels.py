"""The GPU kernels as nvcc compiles them; skipped on machines without nvcc."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
REPORT = SCRIPTS / "gpu_kernels_report.py"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc in PATH")
@pytest.mark.parametrize("architecture", ["75", "80", "86", "90", "100", "103", "120"])
def test_kernels_spill_nothing_and_access_memory_16_bytes_at_a_time(architecture: str) -> None:
    command = [sys.executable, str(REPORT), "--check", "--architecture", architecture]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if "Unsupported gpu architecture" in run.stderr:
        pytest.skip(f"this nvcc does not support sm_{architecture}")
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc in PATH")
def test_float32_needs_few_float64_instructions_where_float64_units_are_few() -> None:
    command = [sys.executable, str(SCRIPTS / "gpu_instructions.py"), "--check"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
