"""scripts/gpu_check.sh: it keeps its time limit, continues after a failure, and lists failures at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def check_in(folder: Path, *, budget: int, parts: str = "") -> subprocess.CompletedProcess[str]:
    """Run gpu_check.sh with outputs in `folder`. Its PATH has no cmake, so that nothing is built."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "cmake").write_text("#!/bin/sh\necho 'no build in this test'\nexit 1\n")
    (tools / "cmake").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "OUT": str(folder / "out"),
        "BUILD": str(folder / "build"),
        "BUDGET": str(budget),
        "PARTS": parts,
    }
    command = ["bash", str(ROOT / "scripts/gpu_check.sh"), "--dry-run"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


def test_without_time_no_part_starts_and_all_are_named(tmp_path: Path) -> None:
    done = check_in(tmp_path, budget=0)
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("FAILED: machine build ctest")
    assert last.endswith("memcheck racecheck trainings")
    assert (tmp_path / "out" / "log.txt").read_text() == ""


def test_a_part_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    done = check_in(tmp_path, budget=200, parts="build soak memcheck")
    assert done.returncode == 1
    assert "no build in this test" in done.stdout
    assert "== memcheck: ok" in done.stdout
    assert done.stdout.splitlines()[-1] == "FAILED: build soak"
    assert "no build in this test" in (tmp_path / "out" / "log.txt").read_text()
