"""Underfit: the starting level, flat and high losses, and healthy trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tdcore.errors import ConfigError
from tdcore.rules import Status, Underfit
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.epochs import fit, rings
from tests.rules.judging import LOSS, judge, losses, same_in_any_cuts
from tests.rules.trainings import judge_run


def quick(**parameters: Any) -> Underfit:
    """Blocks of two values, no warm-up, "high" from step 20 on."""
    return Underfit(**{"window_values": 2, "warmup_steps": 0, "high_steps": 20, "patience": 2} | parameters)


def blocks(*levels: float) -> list[float]:
    """Two values per level."""
    return [level for level in levels for _ in range(2)]


@pytest.mark.proves("TDC106", "fires")
def test_a_linear_model_of_two_rings_is_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    place = fit(tmp_path, nn.Linear(2, 2), rings(16), rings(2, seed=1), epochs=16)
    (finding, *_), verdict = judge_run(Underfit(), place)
    assert verdict.status is Status.ISSUE
    assert (finding.tensor, finding.numbers["kind"]) == (LOSS, "flat")
    assert float(finding.numbers["training_loss"]) == pytest.approx(np.log(2), abs=0.02)


@pytest.mark.proves("TDC106", "quiet")
def test_a_network_that_learns_rings_and_converges_stays_quiet(epochs_run: Path) -> None:
    found, verdict = judge_run(Underfit(), epochs_run)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.proves("TDC106", "not evaluable")
def test_a_training_of_a_few_steps_is_not_evaluable(losses_run: Path) -> None:
    _, verdict = judge_run(Underfit(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "block of losses before step 100" in verdict.reason
    assert 'CollectionConfig(name="losses"' in verdict.fix


@pytest.mark.proves("TDC106", "boundary")
def test_a_flat_loss_at_exactly_the_limit_does_not_fire_and_above_it_does() -> None:
    at = losses(blocks(4.0, 3.0, 3.0, 3.0))
    assert not judge(quick(flat_fraction=0.75), at)[0]
    (finding,) = judge(quick(flat_fraction=0.75 - 1e-9), at)[0]
    assert (finding.step, finding.numbers["start_level"]) == (7, 4.0)
    assert judge(quick(flat_fraction=0.75), losses(blocks(4.0, 3.0 + 1e-6, 3.0 + 1e-6, 3.0 + 1e-6)))[0]


@pytest.mark.proves("TDC106", "boundary")
def test_a_fall_of_exactly_the_percentage_is_none_and_a_little_more_is() -> None:
    assert judge(quick(min_fall_percent=25.0), losses(blocks(4.0, 4.0, 3.0 + 1e-9)))[0]
    assert judge(quick(min_fall_percent=25.0, flat_fraction=0.7), losses(blocks(4.0, 4.0, 3.0)))[0]
    assert not judge(quick(min_fall_percent=25.0, flat_fraction=0.7), losses(blocks(4.0, 4.0, 2.9999)))[0]


@pytest.mark.proves("TDC106", "boundary")
def test_a_loss_that_creeps_is_high_from_the_given_step_on() -> None:
    creeping = [2.0 * 0.9999**step for step in range(100)]
    rule = quick(min_fall_percent=0.0, high_steps=41)
    (finding,) = same_in_any_cuts(rule, losses(creeping))
    assert (finding.step, finding.numbers["kind"]) == (41, "high")
    assert not judge(quick(min_fall_percent=0.0, high_steps=100), losses(creeping))[0]


def test_flat_is_reported_once_until_there_is_progress() -> None:
    found = same_in_any_cuts(quick(high_steps=1000), losses(blocks(*[4.0] * 6, *[3.5] * 6)))
    assert [finding.step for finding in found] == [5, 17]


def test_a_training_that_has_converged_low_is_flat_and_quiet() -> None:
    random = np.random.default_rng(0)
    values = [0.1 + 2.2 * np.exp(-step / 20) + 0.05 * random.random() for step in range(3000)]
    assert not judge(Underfit(), losses(values))[0]


def test_a_slow_but_steady_fall_is_quiet() -> None:
    assert not judge(Underfit(), losses([6.9 * 0.9998**step for step in range(1500)]))[0]


def test_the_level_at_the_start_counts_even_when_the_first_block_falls_steeply() -> None:
    values = [2.3, 2.3, 2.3] + [0.5] * 300
    assert not judge(Underfit(), losses(values))[0]


def test_validation_must_stand_still_and_be_high_too() -> None:
    def trace(validation: list[float]) -> Trace:
        found = Trace()
        step = 0
        for epoch, level in enumerate(validation):
            for at in range(2):
                found.add(step, LOSS, "loss", 4.0, mode="TRAIN", mode_step=2 * epoch + at)
                step += 1
            found.add(step, LOSS, "loss", level, mode="EVAL", mode_step=epoch)
            step += 1
        return found

    rule = quick(high_steps=1000)
    (finding,) = same_in_any_cuts(rule, trace([4.0] * 6))
    assert "and the validation loss is 4" in finding.why
    assert not same_in_any_cuts(rule, trace([4.0, 3.9, 3.8, 3.7, 3.6, 3.5]))
    assert not same_in_any_cuts(rule, trace([1.0] * 6))


def test_without_validation_the_finding_says_so() -> None:
    (finding, *_) = judge(quick(), losses(blocks(4.0, 4.0, 4.0)))[0]
    assert "there is no validation loss, so only the training loss was judged" in finding.why


def test_the_starting_level_can_be_given() -> None:
    values = losses(blocks(0.3, 0.3, 0.3, 0.3))
    assert judge(quick(), values)[0]
    assert not judge(quick(start_level=2.303), values)[0]


def test_losses_that_begin_below_zero_are_not_judged() -> None:
    _, verdict = judge(quick(), losses(blocks(-1.0, -1.0, -1.0)))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "the loss begins at 0 or below" in verdict.reason


def test_parameters_come_as_text() -> None:
    rule = load_rule("underfit:warmup_steps=10,window_values=5,start_level=2.3,tensor_regex=a,b")
    assert rule == Underfit(warmup_steps=10, window_values=5, start_level=2.3, tensor_regex="a,b")


@pytest.mark.parametrize(
    "parameters",
    [
        {"warmup_steps": -1},
        {"window_values": 0},
        {"patience": 0},
        {"min_fall_percent": 100.0},
        {"flat_fraction": 0.0},
        {"high_fraction": -1.0},
        {"start_level": 0.0},
        {"tensor_regex": "("},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Underfit(**parameters)


def test_blocks_shorter_than_the_start_are_judged_before_later_validation_phases_in_any_cut() -> None:
    trace = Trace()
    modes = ["TRAIN"] * 2 + ["EVAL"] * 2 + ["TRAIN"] * 6
    counts = {"TRAIN": 0, "EVAL": 0}
    for step, mode in enumerate(modes):
        trace.add(step, LOSS, "loss", 1.0 if mode == "TRAIN" else 0.1, mode=mode, mode_step=counts[mode])
        counts[mode] += 1
    rule = Underfit(warmup_steps=0, window_values=2, patience=1, high_steps=1)
    assert [finding.step for finding in same_in_any_cuts(rule, trace)] == [1]
