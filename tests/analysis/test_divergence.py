"""The chain of tensors that became NaN or infinite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tdcore as td
from tdcore.analysis.divergence import chain_of_bad_tensors
from tests.trial.writer import RunWriter


def test_the_chain_follows_the_steps_and_the_order_of_computation(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    bad, infinite = np.array([1.0, np.nan]), np.array([np.inf, -np.inf, 1.0])
    for step in range(5):
        late = step >= 3
        run.add("a_output_0", np.full(3, 2.0**step) if step < 2 else infinite, step=step, kind="output")
        run.add("b_output_0", bad if late else np.ones(2), step=step, kind="output")
        run.add("loss_output_0", np.float64(np.nan if late else 1), step=step, kind="loss")
        run.add("gradient/w", bad if late else np.ones(2), step=step, kind="gradient")
        run.add("w", bad if step >= 4 else np.ones(2), step=step, kind="weight")
        run.add("fine_output_0", np.ones(2), step=step, kind="output")
        run.flush()
    run.end()
    chain = chain_of_bad_tensors(td.create_trial(tmp_path / "run"))
    assert [(each.name, each.step) for each in chain] == [
        ("a_output_0", 2), ("b_output_0", 3), ("loss_output_0", 3), ("gradient/w", 3), ("w", 4),
    ]  # fmt: skip
    first = chain[0]
    assert (first.nan, first.infinite, first.elements) == (0, 2, 3)
    assert first.sizes == (1.0, 2.0)
    assert first.growth == 2.0
    assert first.text == "step 2: a_output_0: 2 infinite of 3, before at most 2 (grown 2.0 times)"
    assert chain[1].text == "step 3: b_output_0: 1 NaN of 2, before at most 1"


def test_weights_of_a_step_are_older_than_its_outputs(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.add("output_0", np.array([np.nan]), step=0, kind="output")
    run.add("w", np.array([np.nan]), step=0, kind="weight")
    run.flush()
    run.end()
    assert [each.name for each in chain_of_bad_tensors(td.create_trial(tmp_path / "run"))] == [
        "w",
        "output_0",
    ]


def test_attention_masks_and_finite_runs_have_no_chain_and_another_worker_has_its_own(tmp_path: Path) -> None:
    for rank in range(2):
        run = RunWriter(tmp_path / "run", worker=f"worker_{rank}", world_size=2)
        run.add("mask", np.array([0.0, -np.inf]), step=0, kind="input")
        run.add("out", np.array([np.nan if rank else 1.0]), step=0, kind="output")
        run.flush()
        run.end()
    trial = td.create_trial(tmp_path / "run")
    assert chain_of_bad_tensors(trial) == []
    (bad,) = chain_of_bad_tensors(trial, worker="worker_1")
    assert bad.name == "out"
    assert np.isnan(bad.growth)
    with pytest.raises(td.TdcoreError, match="worker_7"):
        chain_of_bad_tensors(trial, worker="worker_7")
    with pytest.raises(ValueError, match="history is 0"):
        chain_of_bad_tensors(trial, history=0)
