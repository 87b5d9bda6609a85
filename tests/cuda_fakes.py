"""The fake CUDA libraries of the C++ tests (tests/cpp/fake_*.cpp), built for the Python tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["build_fake"]

CPP = Path(__file__).parent / "cpp"


def build_fake(name: str, output: Path) -> Path:
    """Build tests/cpp/<name>.cpp as a shared library; skip the test if there is no compiler."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    output.parent.mkdir(parents=True, exist_ok=True)
    sources = [f"-I{CPP.parents[1] / 'csrc'}", str(CPP / f"{name}.cpp")]
    command = [compiler, "-std=c++20", "-shared", "-fPIC", "-o", str(output), *sources]
    subprocess.run(command, check=True)
    return output
