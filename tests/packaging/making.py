"""Commands of the packaging tests, and the files that they make."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Made", "run", "tracked_files"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Made:
    """Files and output of scripts/make_wheels.py.

    wheel: the wheel as it was built from the sdist. repaired: the wheel with the tag manylinux.
    """

    sdist: Path
    wheel: Path
    repaired: Path
    printed: str


def run(*command: str, cwd: Path, **env: str) -> str:
    merged = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | env
    merged["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{merged['PATH']}"  # cmake of this environment
    done = subprocess.run(command, cwd=cwd, env=merged, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked_files() -> list[Path]:
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT)
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).exists()]
