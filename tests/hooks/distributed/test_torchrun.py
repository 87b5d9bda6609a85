"""Two ranks started by torchrun: its variables identify the ranks before the process group exists."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from .models import twin
from .shards import Run

ROOT = Path(__file__).resolve().parents[3]
TOLERANCE = 2e-6  # for float32 sums in another order, relative to values around 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the script on two ranks; return the folder of its results."""
    place = tmp_path_factory.mktemp("torchrun")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    done = subprocess.run(
        [*command, "tests.hooks.distributed.script", str(place)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        timeout=900,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.mark.supports("torchrun", "losses")
@pytest.mark.supports("torchrun", "cost")
def test_losses_and_collectives_under_torchrun_are_the_same_with_capture_on_and_off(folder: Path) -> None:
    for rank in (0, 1):
        outcome = json.loads((folder / f"rank_{rank}.json").read_text())
        assert outcome["on"] == outcome["off"]
        assert outcome["off"]["operations"] > 0  # the counter works


@pytest.mark.supports("torchrun", "values")
def test_each_process_of_torchrun_is_its_own_worker_and_their_values_are_one_process_s(folder: Path) -> None:
    run = Run(folder / "run")
    assert sorted(run.workers()) == run.attempt["workers"] == ["worker_0", "worker_1"]
    for (name, step), expected in twin(10, 7).items():
        assert len(run.of(name, step)) == 2
        np.testing.assert_allclose(run.merged(name, step), expected, rtol=0, atol=TOLERANCE, err_msg=name)


@pytest.mark.supports("torchrun", "breaks")
def test_a_hook_that_was_made_before_the_process_group_says_nothing_of_it(folder: Path) -> None:
    notes = json.loads((folder / "run" / "collections.json").read_text())["attempts"]["0"]
    assert "place" not in notes
