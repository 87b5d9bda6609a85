"""LossSpike: the height and length of spikes, and heavy-tailed losses without spikes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tdcore.errors import ConfigError
from tdcore.rules import LossSpike, Status
from tdcore.rules.library.loss_spike import _run_lengths
from tdcore.rules.loading import load_rule
from tests.rules.epochs import fit, perceptron, rings
from tests.rules.judging import LOSS, judge, losses, same_in_any_cuts
from tests.rules.trainings import judge_run

STILL = [1.0, 1.2] * 10  # median 1.1, deviation 0.1


def large_step(step: int, optimizer: torch.optim.Optimizer) -> None:
    """The fault: one step with a learning rate that is 200 times too large."""
    for group in optimizer.param_groups:
        group["lr"] = 2.0 if step == 120 else 0.01


@pytest.mark.proves("TDC109", "fires")
def test_one_step_with_a_learning_rate_far_too_large_is_found(tmp_path: Path) -> None:
    place = fit(tmp_path, perceptron(), rings(16), epochs=9, before_step=large_step)
    (finding, *_), verdict = judge_run(LossSpike(), place)
    assert verdict.status is Status.ISSUE
    assert (finding.tensor, finding.numbers["kind"]) == (LOSS, "spike")
    assert 121 <= finding.step <= 130


@pytest.mark.proves("TDC109", "quiet")
def test_the_same_training_without_it_stays_quiet(epochs_run: Path) -> None:
    found, verdict = judge_run(LossSpike(), epochs_run)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 200


@pytest.mark.proves("TDC109", "not evaluable")
def test_a_loss_saved_at_few_steps_is_not_evaluable(sparse_run: Path) -> None:
    _, verdict = judge_run(LossSpike(), sparse_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "loss among the first 20 values" in verdict.reason
    assert "SaveConfig(save_interval=1)" in verdict.fix


@pytest.mark.proves("TDC109", "boundary")
def test_values_of_exactly_the_limit_do_not_fire_and_above_it_do() -> None:
    rule = LossSpike(factor=0.0, min_jump=1.0, min_share=0.0)
    still = [1.0] * 20
    assert not judge(rule, losses([*still, 2.0, 2.0, 2.0]))[0]
    (finding,) = judge(rule, losses([*still, 2.0 + 1e-6, 2.0 + 1e-6, 2.0 + 1e-6]))[0]
    assert (finding.step, finding.numbers["limit"]) == (22, 2.0)


@pytest.mark.proves("TDC109", "boundary")
def test_as_many_values_in_a_row_as_asked_for_fire_and_fewer_do_not() -> None:
    assert not judge(LossSpike(), losses([*STILL, 9.0, 9.0, 1.1, 9.0, 9.0, 1.0]))[0]
    assert [finding.step for finding in judge(LossSpike(), losses([*STILL, 9.0, 9.0, 9.0]))[0]] == [22]
    assert judge(LossSpike(consecutive=1), losses([*STILL, 9.0]))[0]


def test_the_limit_is_the_largest_of_three() -> None:
    spread = 1.4826 * 0.1
    cases = {"factor": 1.1 + 8 * spread, "min_jump": 1.1 * 1.25, "min_share": 1.1 * 1.05}
    for name, limit in cases.items():
        others: dict[str, Any] = {other: 0.0 for other in cases if other != name}
        (finding,) = judge(LossSpike(consecutive=1, **others), losses([*STILL, 9.0]))[0]
        assert finding.numbers["limit"] == pytest.approx(limit)


def test_a_loss_that_stays_up_is_told_as_a_spike_and_then_as_a_step() -> None:
    found = same_in_any_cuts(LossSpike(), losses([*STILL, *[9.0] * 30]))
    assert [(finding.step, finding.numbers["kind"]) for finding in found] == [(22, "spike"), (27, "step")]


def test_a_loss_near_zero_may_flicker() -> None:
    values = [2.3] * 25 + [1e-6] * 25 + [1e-2] * 5
    assert not judge(LossSpike(), losses(values))[0]
    assert judge(LossSpike(min_share=0.0), losses(values))[0]


@pytest.mark.parametrize("sigma", [0.1, 0.3, 0.6, 1.0])
def test_heavy_tails_of_mini_batches_stay_quiet(sigma: float) -> None:
    random = np.random.default_rng(int(10 * sigma))
    values = (0.1 + 2.2 * np.exp(-np.arange(800) / 100)) * random.lognormal(0, sigma, 800)
    assert not judge(LossSpike(), losses(values.tolist()))[0]


def test_random_losses_give_the_same_findings_in_any_windows() -> None:
    random = np.random.default_rng(0)
    values = random.lognormal(0, 0.3, 150)
    values[60:75] *= 20
    values[100:104] *= 30
    found = same_in_any_cuts(LossSpike(), losses(values.tolist()))
    assert len(found) >= 3


def test_batches_of_a_validation_phase_count_as_one_value() -> None:
    values = [1.0, 1.0, 9.0, 9.0, 9.0, 9.0] * 10  # sorted by class: the later ones are harder
    assert not judge(LossSpike(), losses(values, mode="EVAL"))[0]
    assert judge(LossSpike(), losses(values[:2] * 10 + values[2:5], mode="TRAIN"))[0]


@pytest.mark.parametrize("seed", range(20))
def test_run_lengths_are_those_of_a_loop(seed: int) -> None:
    random = np.random.default_rng(seed)
    above: npt.NDArray[np.bool_] = random.random(30) < 0.6
    length, expected = 4, []
    for each in above.tolist():
        length = length + 1 if each else 0
        expected.append(length)
    assert _run_lengths(above, 4).tolist() == expected


def test_parameters_come_as_text() -> None:
    assert load_rule("loss_spike:factor=5,window_values=40") == LossSpike(factor=5.0, window_values=40)


@pytest.mark.parametrize(
    "parameters",
    [
        {"window_values": 9},
        {"factor": -1.0},
        {"min_jump": -0.1},
        {"min_share": -0.1},
        {"consecutive": 0},
        {"consecutive": 8},
        {"tensor_regex": "("},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LossSpike(**parameters)


def test_a_loss_that_has_come_close_to_zero_may_flicker_within_a_thousandth_of_its_first_value() -> None:
    quiet = [1.0, *[0.0] * 30]
    assert not judge(LossSpike(), losses([*quiet, *[0.0009] * 5]))[0]
    assert judge(LossSpike(), losses([*quiet, *[0.0011] * 5]))[0]
