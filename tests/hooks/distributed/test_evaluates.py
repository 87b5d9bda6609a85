"""Only rank 0 evaluates: its global steps are ahead of those of rank 1 after the first evaluation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tdcore as td
from tdcore import modes
from tdcore.rules import Status
from tdcore.rules.legacy import LegacyRule, Rule
from tdcore.trial import Trial

from .conftest import ROOT

TRAINED = [0, 1, 2, 5, 6, 7]
EVALUATED = [3, 4]
TRAINED_KINDS = ["weight", "bias", "gradient"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of the two ranks."""
    place = tmp_path_factory.mktemp("evaluates")
    done = subprocess.run(
        [sys.executable, "-m", "tests.hooks.distributed.evaluates", str(place)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        timeout=600,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "run"


@pytest.fixture
def trial(folder: Path) -> Trial:
    return td.create_trial(str(folder))


def test_steps_of_all_ranks_are_those_of_rank_0(trial: Trial) -> None:
    assert trial.steps() == list(range(8))
    assert [trial.global_step(modes.TRAIN, step) for step in range(6)] == TRAINED
    assert [trial.mode(step) for step in EVALUATED] == [modes.EVAL, modes.EVAL]
    for worker in ("worker_0", "worker_1"):
        table = trial.stats(["gradient/Net_fc1.weight"], workers=worker)
        assert table.column("step").to_pylist() == TRAINED
    assert trial.tensor("Net_fc1.weight").workers(4) == ["worker_0"]


def test_copies_of_the_ranks_are_equal_at_every_step(trial: Trial) -> None:
    rows = trial.compare_workers(kinds=TRAINED_KINDS, mode=modes.TRAIN).to_pylist()
    assert {row["step"] for row in rows} == set(TRAINED)
    assert {row["alike"] for row in rows} == {2}
    assert {row["deviation"] for row in rows} == {0.0}
    merged = trial.stats(kinds=TRAINED_KINDS, mode=modes.TRAIN, merged=True).to_pylist()
    assert {(row["workers"], row["reason"]) for row in merged} == {(2, None)}


def test_values_of_a_step_are_the_same_on_both_ranks(trial: Trial) -> None:
    weight = trial.tensor("Net_head.weight")
    assert list(weight.values()) == [*range(8)]
    for step in TRAINED:
        values = [weight.value(step, worker=worker) for worker in ("worker_0", "worker_1")]
        assert np.array_equal(values[0], values[1])
        assert np.array_equal(weight.global_value(step), values[0])
    loss = trial.tensor("Net_output_0")
    assert loss.workers(5) == ["worker_0", "worker_1"]
    assert loss.workers(3) == ["worker_0"]


class CopiesAreEqual(Rule):
    """Fires where the copies of a weight differ."""

    def invoke_at_step(self, step: int) -> bool:
        weight = self.base_trial.tensor("Net_fc2.weight")
        values = [weight.value(step, worker=worker) for worker in weight.workers(step)]
        return any(not np.array_equal(values[0], each) for each in values)


def test_rules_that_read_several_ranks_read_the_same_step(folder: Path) -> None:
    (verdict,) = td.rules.run(folder, [LegacyRule(CopiesAreEqual)]).verdicts
    assert (verdict.status, verdict.judged) == (Status.NO_ISSUE, 8)
