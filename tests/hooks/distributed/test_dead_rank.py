"""A rank is killed: readers wait for its steps while it lives, and not after its death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import tdcore as td
from tests.waiting import wait_until

from .conftest import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of two running jobs."""
    place = tmp_path_factory.mktemp("mortal")
    command = [sys.executable, "-m", "tests.hooks.distributed.mortal", str(place)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as jobs:
        yield place
    assert jobs.returncode == 0


@pytest.mark.parametrize("flusher", ["thread", "process"])
def test_steps_that_a_killed_rank_will_not_have_are_complete_without_it(folder: Path, flusher: str) -> None:
    run = folder / flusher
    wait_until(lambda: len(list(run.glob("attempts/*"))) == 2 and (run / "run.json").exists(), "both began")
    trial = td.create_trial(str(run), settle=timedelta(seconds=0.2))
    wait_until(lambda: trial.steps(show_incomplete_steps=True) == list(range(6)), "the first rank is done")
    wait_until(lambda: trial.steps() == [0, 1, 2], "the second rank stops")
    wait_until(lambda: trial.waiting_for(5) == ["worker_1"], "the first rank has done its last step")
    os.kill(json.loads((run / "attempts" / "0000-worker_1.json").read_text())["pid"], signal.SIGKILL)
    wait_until(lambda: trial.steps() == list(range(6)), "the second rank is given up")
    assert trial.waiting_for(5) == []
    assert trial.tensor("Net_head.bias").workers(1) == ["worker_0", "worker_1"]
    assert trial.tensor("Net_head.bias").workers(5) == ["worker_0"]
    assert (run / "end" / "worker_1").exists() == (flusher == "process")
