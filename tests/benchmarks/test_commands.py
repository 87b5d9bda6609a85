"""`python -m benchmarks`: the names, and small real runs of the fast benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


def test_without_a_name_it_lists_the_benchmarks() -> None:
    done = benchmarks()
    assert done.returncode == 0
    for name in (
        "slowdown",
        "read",
        "flush",
        "flusher-memory",
        "s3",
        "native",
        "gpu",
        "default-rules",
        "hook-cost",
        "profilers",
        "operator-cost",
        "crash-table",
    ):
        assert name in done.stdout


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    done = benchmarks("speed")
    assert done.returncode == 2
    assert "there is no benchmark 'speed'" in done.stderr
    assert "slowdown" in done.stderr


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("read", ["--rows", "4000", "--repeats", "1", "--peer-seconds", "0"]),
        ("flush", ["--gigabytes", "0.05", "--repeats", "1", "--rows", "2000", "--seconds", "0.5"]),
        ("flusher-memory", ["--seconds", "0.5", "--repeats", "1", "--loads", "10 tensors"]),
        ("default-rules", ["--pairs", "1", "--quick"]),
        ("hook-cost", ["--rounds", "3"]),
        ("profilers", ["--seconds", "0", "--long-steps", "20", "--models", "mlp", "--tools", "tdcore"]),
    ],
)
def test_a_small_run_saves_its_numbers_with_the_machine_they_come_from(
    name: str, options: list[str], tmp_path: Path
) -> None:
    done = benchmarks(name, *options, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.iterdir()
    saved = json.loads(path.read_text())
    assert saved["environment"]["cpu"]
    assert saved["method"]
