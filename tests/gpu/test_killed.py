"""A trainer that is killed while copies are in progress: committed records are complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tdcore as td
from tests.gpu.quadratic import SIZES, values
from tests.trainers.checks import flushers_of
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("after_steps", [1, 10, 60])
def test_a_trainer_killed_in_flight_leaves_whole_values_only(
    tmp_path: Path, device: torch.device, after_steps: int
) -> None:
    ledger = tmp_path / "ledger.txt"
    trainer = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.quadratic", str(tmp_path), "100000"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        wait_until(
            lambda: (
                trainer.poll() is not None
                or (ledger.exists() and ledger.read_text().count("\n") >= after_steps)
            ),
            f"{after_steps} steps were captured",
        )
        assert trainer.poll() is None, "the trainer ended by itself"
    finally:
        trainer.kill()
        trainer.wait()
    wait_until(lambda: not flushers_of(tmp_path / "run"), "the flusher ended")
    trial = td.create_trial(str(tmp_path / "run"))
    rows = [row for row in trial.rows().to_pylist() if row["status"] == "ok" and row["nbytes"]]
    for row in rows:
        step, number = row["step"], int(row["name"][1:])
        value = trial.tensor(row["name"]).value(step)
        assert value.shape == (SIZES[number],)
        assert np.array_equal(value, values(step, number, torch.device("cpu")).numpy()), (step, number)
    kept = {row["step"] for row in rows}
    assert kept == set(range(len(kept))), "steps are kept from the first one on, without holes"


def test_values_that_had_arrived_on_the_host_survive(tmp_path: Path, device: torch.device) -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", _WAITS_BEFORE_CLOSING, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert trainer.stdout is not None
    try:
        assert trainer.stdout.readline() == "arrived\n"
    finally:
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()
    wait_until(lambda: not flushers_of(tmp_path / "run"), "the flusher ended")
    trial = td.create_trial(str(tmp_path / "run"))
    for number in range(len(SIZES)):
        assert trial.tensor(f"t{number}").steps(show_incomplete_steps=True) == list(range(20))


_WAITS_BEFORE_CLOSING = """
import sys, time, pathlib, torch
from tests.gpu import quadratic
from tests.gpu.conftest import SIMULATED

class Session(quadratic.Session):
    def close(self, timeout=None):
        while any(device["in_flight"] for device in self.ring.device_reports()):
            time.sleep(0.01)
        print("arrived", flush=True)
        time.sleep(60)

quadratic.Session = Session
quadratic.main(pathlib.Path(sys.argv[1]), 20, torch.device("cpu" if SIMULATED else "cuda"))
"""
