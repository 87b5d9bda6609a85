"""Environment of a measurement: commit, machine, versions, load. The first part of each result file."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def cpu_name() -> str:
    """Model name of the CPU, from the kernel."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def commit() -> str:
    """Short hash of HEAD, with "+" if the tree has uncommitted changes; "unknown" outside a checkout."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"], cwd=ROOT, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def version(name: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe() -> dict[str, Any]:
    """The environment that a reader needs to judge a number."""
    from tdcore import _core

    return {
        "commit": commit(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "simd": _core.simd_level(),
        "load_average": os.getloadavg(),
        "versions": {name: version(name) for name in ("torch", "numpy", "pyarrow", "tdcore-capture")},
    }


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add the option --out, the folder of the result file."""
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result file")


def save(name: str, result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write <folder>/<name>.<commit>.json and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{commit().rstrip('+')}.json"
    path.write_text(json.dumps({"environment": describe(), **result}, indent=1) + "\n")
    return path
