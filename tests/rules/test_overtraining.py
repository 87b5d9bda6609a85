"""Overtraining: the optimum, the two counters, and the verdict without validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.errors import ConfigError
from tdcore.rules import Overtraining, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.epochs import fit, perceptron, rings
from tests.rules.judging import LOSS, judge, losses, same_in_any_cuts
from tests.rules.trainings import judge_run


def single(**parameters: Any) -> Overtraining:
    """Each saved value is its own phase."""
    return Overtraining(smoothing_values=1, **parameters)


def epochs(training: list[float], validation: list[float]) -> Trace:
    """Return a trace of epochs of one training and one validation step."""
    trace = Trace()
    for epoch, (train, test) in enumerate(zip(training, validation, strict=True)):
        trace.add(2 * epoch, LOSS, "loss", train, mode="TRAIN", mode_step=epoch)
        trace.add(2 * epoch + 1, LOSS, "loss", test, mode="EVAL", mode_step=epoch)
    return trace


@pytest.mark.proves("TDC107", "fires")
def test_a_training_that_goes_on_long_after_it_has_converged_is_found(tmp_path: Path) -> None:
    place = fit(tmp_path, perceptron(), rings(16), rings(2, seed=1), epochs=38)
    (finding, *_), verdict = judge_run(Overtraining(), place)
    assert verdict.status is Status.ISSUE
    assert finding.tensor == LOSS
    assert "the validation loss has not improved on" in finding.why


@pytest.mark.proves("TDC107", "quiet")
def test_the_same_training_ended_when_it_has_converged_stays_quiet(tmp_path: Path) -> None:
    place = fit(tmp_path, perceptron(), rings(16), rings(2, seed=1), epochs=14)
    found, verdict = judge_run(Overtraining(), place)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.proves("TDC107", "not evaluable")
def test_a_loss_saved_once_is_not_evaluable(sparse_run: Path) -> None:
    _, verdict = judge_run(Overtraining(), sparse_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="losses"' in verdict.fix


@pytest.mark.proves("TDC107", "boundary")
def test_an_improvement_by_exactly_delta_is_no_new_optimum_and_by_more_is() -> None:
    assert judge(single(delta=0.25, patience_train=1), losses([2.0, 1.75]))[0]
    assert not judge(single(delta=0.25 - 1e-9, patience_train=1), losses([2.0, 1.75]))[0]
    assert not judge(single(delta=0.25, patience_train=1), losses([2.0, 1.75 - 1e-9]))[0]


@pytest.mark.proves("TDC107", "boundary")
def test_the_counters_fire_when_they_reach_their_patience() -> None:
    falling, still = [2.0, 1.5, 1.0], [1.0] * 9
    assert not judge(single(), losses(falling + still[:4]))[0]
    assert [finding.step for finding in judge(single(), losses(falling + still[:5]))[0]] == [7]


def test_both_counters_must_reach_their_patience_unless_any_is_enough() -> None:
    still, falling = [1.0] * 8, [1.0 - 0.1 * at for at in range(8)]
    both = single(patience_train=3, patience_validation=4)
    either = single(patience_train=3, patience_validation=4, require="any")
    assert [finding.step for finding in same_in_any_cuts(both, epochs(still, still))] == [9]
    assert not same_in_any_cuts(both, epochs(still, falling))
    assert not same_in_any_cuts(both, epochs(falling, still))
    assert [finding.step for finding in same_in_any_cuts(either, epochs(still, falling))] == [6]
    assert [finding.mode for finding in same_in_any_cuts(either, epochs(falling, still))] == ["EVAL"]


def test_without_validation_the_finding_says_that_the_training_loss_decided_alone() -> None:
    (finding,) = judge(single(), losses([1.0] * 9))[0]
    assert finding.why.endswith("there is no validation loss, so only the training loss was judged")
    assert "validation_best" not in finding.numbers


def test_it_is_reported_once_until_there_is_a_new_optimum() -> None:
    found = same_in_any_cuts(single(patience_train=2), losses([3.0] * 6 + [2.0] * 6))
    assert [finding.step for finding in found] == [2, 8]


def test_means_are_compared_so_that_one_lucky_batch_is_not_the_optimum_for_ever() -> None:
    random = np.random.default_rng(0)
    noisy = [2.0 * 0.995**step * random.lognormal(0, 0.4) for step in range(160)]
    assert not same_in_any_cuts(Overtraining(), losses(noisy))
    assert judge(Overtraining(compat=True), losses(noisy))[0]


def test_small_losses_can_improve_at_all() -> None:
    values = [0.009 * 0.8**block for block in range(12) for _ in range(20)]
    assert not judge(Overtraining(), losses(values))[0]
    assert judge(Overtraining(compat=True), losses(values))[0]


def test_a_validation_phase_is_one_value() -> None:
    trace = Trace()
    for epoch in range(4):
        for at in range(4):
            step = 5 * epoch + at
            value = 1.0 - 0.1 * epoch + (-1) ** at  # one batch is always easy
            trace.add(step + 1, LOSS, "loss", value, mode="EVAL", mode_step=4 * epoch + at)
        trace.add(5 * epoch, LOSS, "loss", 1.0, mode="TRAIN", mode_step=epoch)
    trace.rows.sort(key=lambda row: row["step"])
    rule = single(patience_train=1, patience_validation=2)
    assert not same_in_any_cuts(rule, trace)
    assert same_in_any_cuts(Overtraining(compat=True, patience_train=1, patience_validation=2), trace)


def test_older_parameters_come_as_text() -> None:
    rule = load_rule("overtraining:patience_train=2,patience_validation=3,delta=0.1,require=any")
    assert rule == Overtraining(patience_train=2, patience_validation=3, delta=0.1, require="any")


@pytest.mark.parametrize(
    "parameters",
    [
        {"patience_train": 0},
        {"patience_validation": 0},
        {"delta": -1.0},
        {"require": "one"},
        {"smoothing_values": 0},
        {"tensor_regex": "("},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Overtraining(**parameters)
