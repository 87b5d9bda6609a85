"""The GPU kernels as nvcc compiles them; skipped on machines without nvcc."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPORT = Path(__file__).resolve().parent.parent / "scripts" / "gpu_kernels_report.py"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc in PATH")
@pytest.mark.parametrize("architecture", ["80", "90", "100"])
def test_kernels_spill_nothing_and_access_memory_16_bytes_at_a_time(architecture: str) -> None:
    command = [sys.executable, str(REPORT), "--check", "--architecture", architecture]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if "Unsupported gpu architecture" in run.stderr:
        pytest.skip(f"this nvcc does not support sm_{architecture}")
    assert run.returncode == 0, run.stdout + run.stderr
