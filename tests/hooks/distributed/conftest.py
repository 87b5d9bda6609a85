"""The job of all tests on four ranks: its processes are started once in a session."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run every case on four processes, without and with capture; return the folder of the results.

    The workers of pytest-xdist share the folder: the first worker runs the job, others wait for its end.
    """
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "job_of_four_ranks"
    with place.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if found := file.read():
            return Path(found)
        folder = tmp_path_factory.mktemp("job")
        _run_job(folder)
        file.write(str(folder))
    return folder


def _run_job(folder: Path) -> None:
    command = [sys.executable, "-m", "tests.hooks.distributed.ranks", str(folder)]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | threads, capture_output=True, timeout=900, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def outcomes(job: Path) -> list[dict[str, Any]]:
    """Return, by rank, case -> losses and operations, without capture ("off") and with capture ("on")."""
    return [json.loads((job / f"rank_{rank}.json").read_text()) for rank in range(4)]
