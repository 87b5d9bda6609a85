"""Instructions of a native capture call, counted by callgrind, independent of the machine's load.

`tests/cpp/gate_capture.cpp` captures; the counts cover `tdcore::capture()` alone, mostly in warm calls. The
program is built by `.ci/run cpp`; `TDCORE_GATE_CAPTURE` is the path of another one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

PROGRAM = Path(
    os.environ.get("TDCORE_GATE_CAPTURE")
    or Path(__file__).parents[2] / "build" / "cpp-plain" / "gate_capture"
)
VALUES, STATISTICS = 1, 2
CALLS = 100
ELEMENTS = 64  # float32, the size of a bias
CALL = 560  # upper limit of the fixed part of a call

pytestmark = [
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed"),
    pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built: bash .ci/run cpp"),
]


@cache
def instructions(tensors: int, flags: int, level: str) -> int:
    """Return the instructions of CALLS calls that capture `tensors` tensors each."""
    command = [
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        "--toggle-collect=tdcore::capture(*",
        str(PROGRAM),
        *map(str, (tensors, ELEMENTS, flags, CALLS)),
    ]
    done = subprocess.run(
        command, env={**os.environ, "TDCORE_SIMD": level}, capture_output=True, text=True, check=False
    )
    collected = re.search(r"Collected : (\d+)", done.stderr)
    assert done.returncode == 0, done.stderr
    assert collected, done.stderr
    return int(collected[1])


def per_tensor(flags: int, level: str) -> float:
    return (instructions(201, flags, level) - instructions(1, flags, level)) / 200 / CALLS


def needs(level: str) -> None:
    flags = Path("/proc/cpuinfo").read_text() if level == "avx2" else ""
    if level == "avx2" and not {"avx2", "fma", "f16c", "bmi2", "movbe"} <= set(flags.split()):
        pytest.skip("this machine has no AVX2")


@pytest.mark.parametrize("level", ["portable", "avx2"])
def test_a_call_itself_takes_few_instructions(level: str) -> None:
    needs(level)
    assert 0 < instructions(1, VALUES, level) / CALLS - per_tensor(VALUES, level) < CALL


@pytest.mark.parametrize(
    ("flags", "level", "ceiling"),
    [
        (VALUES, "portable", 500),
        (VALUES | STATISTICS, "portable", 3300),
        (STATISTICS, "avx2", 1900),
        (VALUES | STATISTICS, "avx2", 2050),
    ],
)
def test_a_small_tensor_takes_few_instructions(flags: int, level: str, ceiling: int) -> None:
    needs(level)
    assert 0 < per_tensor(flags, level) < ceiling
