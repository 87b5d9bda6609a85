"""Overfit: the phases that are compared, when a gap counts, and when it is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.errors import ConfigError
from tdcore.rules import Overfit, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.epochs import fit, flipped, perceptron, rings
from tests.rules.judging import LOSS, judge, same_in_any_cuts
from tests.rules.trainings import judge_run

OLDER = Overfit(compat=True)


def epochs(*means: tuple[float, float], noise: float = 0.0, name: str = LOSS) -> Trace:
    """Return a trace of epochs: 5 training and 4 validation steps with these means (training, validation)."""
    trace = Trace()
    step = 0
    for epoch, levels in enumerate(means):
        for mode, level, number in zip(("TRAIN", "EVAL"), levels, (5, 4), strict=True):
            for at in range(number):
                value = level + noise * (-1) ** at
                trace.add(step, name, "loss", value, mode=mode, mode_step=epoch * number + at)
                step += 1
    return trace


@pytest.mark.proves("TDC105", "fires")
def test_a_network_that_learns_wrong_labels_by_heart_is_found(tmp_path: Path) -> None:
    batches, validation = flipped(rings(2), 0.3), flipped(rings(4, seed=1), 0.3)
    place = fit(tmp_path, perceptron(256), batches, validation, epochs=60)
    (finding, *_), verdict = judge_run(Overfit(), place)
    assert (finding.tensor, finding.mode) == (LOSS, "EVAL")
    assert verdict.status is Status.ISSUE
    assert float(finding.numbers["ratio"]) > 0.1


@pytest.mark.proves("TDC105", "quiet")
def test_a_network_that_learns_rings_well_stays_quiet(epochs_run: Path) -> None:
    found, verdict = judge_run(Overfit(), epochs_run)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged == 20


@pytest.mark.proves("TDC105", "not evaluable")
def test_a_training_without_validation_is_not_evaluable_and_the_fix_saves_it(losses_run: Path) -> None:
    _, verdict = judge_run(Overfit(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "EVAL mode" in verdict.reason
    assert "modes.EVAL: SaveConfigMode(save_interval=1)" in verdict.fix


@pytest.mark.proves("TDC105", "boundary")
def test_a_ratio_of_exactly_the_threshold_does_not_fire_and_one_above_does() -> None:
    at, above = epochs((1.0, 1.25)), epochs((1.0, 1.25 + 1e-9))
    assert not judge(Overfit(compat=True, ratio_threshold=0.25), at)[0]
    (finding,) = judge(Overfit(compat=True, ratio_threshold=0.25), above)[0]
    assert (finding.step, finding.mode_step) == (8, 3)
    assert judge(Overfit(compat=True, ratio_threshold=0.25 - 1e-9), at)[0]


@pytest.mark.proves("TDC105", "boundary")
def test_patience_counts_phases_in_a_row() -> None:
    bad, good = (1.0, 2.0), (1.0, 1.0)
    assert not judge(Overfit(), epochs(good, bad, bad))[0]
    assert [finding.step for finding in judge(Overfit(), epochs(good, bad, bad, bad))[0]] == [35]
    assert not judge(Overfit(), epochs(good, bad, bad, good, bad, bad))[0]


def test_it_is_reported_once_until_a_phase_does_not_count() -> None:
    bad, good = (1.0, 2.0), (1.0, 1.0)
    found = same_in_any_cuts(Overfit(patience=1), epochs(good, bad, bad, good, bad, bad))
    assert [finding.step for finding in found] == [17, 44]
    older = same_in_any_cuts(OLDER, epochs(good, bad, bad, good, bad, bad))
    assert [finding.step for finding in older] == [17, 26, 44, 53]


def test_a_gap_counts_only_while_the_validation_loss_is_not_at_its_lowest() -> None:
    falling = epochs((1.0, 2.0), (0.5, 1.5), (0.3, 1.2), (0.2, 1.0))
    assert not judge(Overfit(), falling)[0]
    assert len(judge(OLDER, falling)[0]) == 4


def test_a_gap_within_the_scatter_of_the_losses_does_not_count() -> None:
    noisy = epochs(*[(1.0, 1.0)] * 2, *[(1.0, 1.5)] * 4, noise=0.5)
    assert not judge(Overfit(), noisy)[0]
    assert judge(Overfit(standard_errors=0.0), noisy)[0]


def test_a_validation_without_training_right_before_it_is_not_judged() -> None:
    trace = epochs((1.0, 2.0))
    for at in range(3):  # the next validation, after a training phase without saved losses
        trace.add(20 + at, LOSS, "loss", 2.0, mode="EVAL", mode_step=4 + at)
    _, verdict = judge(OLDER, trace)
    assert verdict.judged == 1
    assert verdict.missing == {"no training loss was saved in the phase before a validation phase": 1}


def test_a_training_loss_of_zero_or_less_is_not_judged() -> None:
    _, verdict = judge(OLDER, epochs((0.0, 1.0), (-1.0, 1.0)))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "mean training loss is 0 or less (2 times)" in verdict.reason


def test_losses_and_workers_are_judged_alone_and_values_that_are_not_finite_left_out() -> None:
    trace = epochs((1.0, 2.0))
    for row in epochs((1.0, 1.0), name="other_loss").rows:
        trace.rows.append(row | {"worker": "worker_1"})
    trace.add(1, LOSS, "loss", np.nan, mode="TRAIN", worker="worker_1")
    found, verdict = judge(OLDER, trace)
    assert [(finding.worker, finding.tensor) for finding in found] == [("worker_0", LOSS)]
    assert verdict.missing == {"loss is not finite": 1}


def test_start_step_leaves_out_what_is_before_it() -> None:
    trace = epochs((1.0, 2.0), (1.0, 2.0))
    assert [finding.step for finding in judge(Overfit(compat=True, start_step=9), trace)[0]] == [17]


def test_random_losses_give_the_same_findings_in_any_windows() -> None:
    random = np.random.default_rng(0)
    trace = epochs(*[(0.9**epoch, 0.6 + 0.1 * random.random()) for epoch in range(20)], noise=0.03)
    assert same_in_any_cuts(Overfit(), trace)
    assert same_in_any_cuts(OLDER, trace)


def test_older_parameters_come_as_text() -> None:
    rule = load_rule("overfit:tensor_regex=^a,b$,start_step=5,patience=2,ratio_threshold=0.2")
    assert rule == Overfit(tensor_regex="^a,b$", start_step=5, patience=2, ratio_threshold=0.2)


@pytest.mark.parametrize(
    "parameters",
    [
        {"patience": 0},
        {"start_step": -1},
        {"ratio_threshold": -0.1},
        {"standard_errors": -1.0},
        {"tensor_regex": "("},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Overfit(**parameters)


def test_losses_of_evaluation_sets_are_compared_in_blocks_of_ten_rounds_in_any_windows() -> None:
    trace = Trace()
    for step in range(60):
        trace.add(step, "train-logloss", "loss", 0.5 * 0.95**step)
        trace.add(step, "valid-logloss", "loss", 0.6 + 0.01 * abs(step - 15))
        trace.add(step, "valid-auc", "metric", 0.9)
    (finding,), _ = judge(Overfit(), trace)
    assert (finding.step, finding.tensor) == (49, "valid-logloss")
    assert same_in_any_cuts(Overfit(), trace)
    assert judge(Overfit(training_sets="other"), trace)[1].judged == 0
