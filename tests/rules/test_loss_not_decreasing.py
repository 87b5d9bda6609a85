"""LossNotDecreasing: the losses that count as not falling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdcore.errors import ConfigError
from tdcore.rules import Finding, LossNotDecreasing, Status
from tdcore.rules.trace import Trace
from tests.rules.judging import LOSS, judge, losses, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network, train


def rule(**parameters: Any) -> LossNotDecreasing:
    """The plain comparison: no smoothing, one strike is enough."""
    return LossNotDecreasing(**{"smoothing_steps": 1, "patience": 1, "num_steps": 1, **parameters})


def fired(found: list[Finding]) -> list[tuple[int, str]]:
    return [(finding.step, str(finding.numbers["kind"])) for finding in found]


@pytest.mark.proves("TDC103", "boundary")
def test_a_fall_of_exactly_diff_percent_is_progress_and_less_is_not() -> None:
    assert not judge(rule(diff_percent=1.0), losses([1.0, 0.99]))[0]
    assert fired(judge(rule(diff_percent=1.0), losses([1.0, 0.9901]))[0]) == [(1, "plateau")]


@pytest.mark.proves("TDC103", "boundary")
def test_a_rise_above_the_threshold_is_called_an_increase() -> None:
    assert fired(judge(rule(increase_threshold_percent=5), losses([1.0, 1.06]))[0]) == [(1, "increase")]
    assert fired(judge(rule(increase_threshold_percent=5), losses([1.0, 1.04]))[0]) == [(1, "plateau")]


def test_steps_compared_lie_at_least_num_steps_apart() -> None:
    # smdebug's example: saved every 3 steps, num_steps 10: 12, 24, 36 after the first value at 0.
    _, verdict = judge(rule(num_steps=10), losses([0.9**at for at in range(13)], every=3))
    assert verdict.judged == 3
    found, _ = judge(rule(num_steps=10), losses([1.0] * 13, every=3))
    assert [finding.step for finding in found] == [12, 24, 36]


def test_patience_counts_strikes_in_a_row_and_progress_clears_them() -> None:
    flat = [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    assert [finding.step for finding in judge(rule(patience=3), losses(flat))[0]] == [6]
    assert [finding.step for finding in judge(rule(patience=2), losses(flat))[0]] == [2, 5, 6]


def test_the_baseline_is_the_best_so_far_so_a_slow_rise_is_noticed() -> None:
    rising = [1.0, 1.03, 1.06, 1.09]
    assert fired(judge(rule(), losses(rising))[0]) == [(1, "plateau"), (2, "increase"), (3, "increase")]


def test_compat_tolerates_small_rises_and_moves_the_baseline_with_every_finding() -> None:
    compat = LossNotDecreasing(compat=True, num_steps=1)
    assert not judge(compat, losses([1.0, 1.03]))[0]
    assert fired(judge(compat, losses([1.0, 1.06, 1.06]))[0]) == [(1, "increase"), (2, "plateau")]
    assert fired(judge(compat, losses([1.0, 1.03, 1.06]))[0]) == [(2, "increase")]


def test_smoothing_compares_means_so_that_noise_is_not_taken_for_a_rise() -> None:
    noise = np.random.default_rng(1).normal(0, 0.05, 201)
    falling = (1 - np.arange(201) / 300 + noise).tolist()
    smooth = LossNotDecreasing(num_steps=20)
    assert not judge(smooth, losses(falling))[0]
    assert judge(LossNotDecreasing(num_steps=20, smoothing_steps=1, patience=1), losses(falling))[0]


def test_the_mean_is_over_the_last_smoothing_steps() -> None:
    found, _ = judge(
        LossNotDecreasing(num_steps=4, smoothing_steps=2, patience=1), losses([1.0, 9.0, 9.0, 2.0, 4.0])
    )
    assert found[0].numbers["loss"] == 3.0


@pytest.mark.parametrize(("before", "after"), [(-1.0, -2.0), (1.0, -1.0), (0.0, -0.5)])
def test_losses_may_be_negative_or_zero(before: float, after: float) -> None:
    assert not judge(rule(), losses([before, after]))[0]
    assert judge(rule(), losses([after, before]))[0]


def test_values_that_are_not_scalars_or_not_finite_are_left_out_and_counted() -> None:
    trace = losses([1.0, 0.5])
    trace.add(2, LOSS, "loss", [0.1, 0.2]).add(3, LOSS, "loss", float("nan")).add(4, LOSS, "loss", 0.2)
    found, verdict = judge(rule(), trace)
    assert not found
    assert verdict.missing == {"loss is not a scalar": 1, "loss is not finite": 1}


def test_a_loss_of_each_sample_whose_mean_is_recorded_is_not_missing() -> None:
    trace = Trace()
    for step, values in enumerate([[1.0, 3.0], [0.5, 2.5]]):
        trace.add(step, "l2loss0_output_0", "loss", values).add(step, "l2loss0_mean", "loss", sum(values) / 2)
        trace.add(step, "other_output_0", "loss", values)
    found, verdict = judge(rule(), trace)
    assert not found
    assert verdict.missing == {"loss is not a scalar": 2}  # of the other loss


def test_several_values_of_one_step_are_averaged() -> None:
    trace = Trace()
    for step, values in enumerate([(1.0, 3.0), (0.5, 2.5)]):
        for call, value in enumerate(values):
            trace.add(step, LOSS, "loss", value, call=call)
    assert not judge(rule(), trace)[0]
    assert judge(rule(diff_percent=30.0), trace)[0][0].numbers["loss"] == 1.5


def test_a_run_shorter_than_num_steps_is_not_evaluable() -> None:
    _, verdict = judge(LossNotDecreasing(), losses([1.0] * 5))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "num_steps = 10" in verdict.reason


def phases(train: list[float], evaluation: list[float]) -> Trace:
    """Return a trace of epochs: 10 training and 4 validation steps, with one value per phase."""
    trace, step = Trace(), 0
    for epoch, (low, high) in enumerate(zip(train, evaluation, strict=True)):
        for at in range(10):
            trace.add(step, LOSS, "loss", low, mode="TRAIN", mode_step=epoch * 10 + at)
            step += 1
        for at in range(4):
            wobble = 0.3 * (-1) ** at  # batches of a phase differ, their mean does not
            trace.add(step, LOSS, "loss", high + wobble, mode="EVAL", mode_step=epoch * 4 + at)
            step += 1
    return trace


def test_in_eval_mode_a_whole_phase_is_one_value() -> None:
    one = LossNotDecreasing(mode="EVAL", num_steps=1, patience=1)
    assert not judge(one, phases([1, 1, 1], [3.0, 2.0, 1.0]))[0]
    found, verdict = judge(one, phases([1, 1, 1], [3.0, 2.0, 2.0]))
    assert [(finding.mode, finding.step, finding.mode_step) for finding in found] == [("EVAL", 41, 11)]
    assert verdict.judged == 2


def test_a_flat_training_is_found_though_a_validation_loss_falls() -> None:
    flat = phases([1.0] * 4, [4.0, 3.0, 2.0, 1.0])
    found, _ = judge(rule(num_steps=5, patience=2), flat)
    assert {(finding.mode, int(finding.numbers["strikes"]) >= 4) for finding in found} == {("TRAIN", True)}


def test_a_training_that_has_learned_and_then_stands_still_next_to_a_validation_is_no_finding() -> None:
    found, _ = judge(
        rule(num_steps=5, patience=2), phases([1.0, 0.5, 0.5, 0.5, 0.5], [5.0, 4.0, 3.0, 2.0, 1.0])
    )
    assert not found


def test_the_older_rule_judges_the_first_of_eval_train_global_with_data_up_to_the_step() -> None:
    found, _ = judge(LossNotDecreasing(num_steps=5, compat=True), phases([1.0, 1.0, 1.0], [3.0, 2.0, 1.0]))
    assert [(finding.mode, finding.step) for finding in found] == [("TRAIN", 5)]


def test_a_mode_can_be_named() -> None:
    found, _ = judge(rule(num_steps=5, mode="TRAIN"), phases([1.0, 1.0, 1.0], [3.0, 2.0, 1.0]))
    assert {finding.mode for finding in found} == {"TRAIN"}
    assert len(found) == 5


def test_mode_global_takes_all_steps_by_their_global_number() -> None:
    found, _ = judge(rule(mode="GLOBAL", num_steps=10), phases([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]))
    assert {finding.mode for finding in found} == {"GLOBAL"}
    assert [finding.step for finding in found] == [10, 20, 30, 40]


def test_workers_and_tensors_are_judged_alone() -> None:
    trace = Trace()
    for step in range(2):
        trace.add(step, LOSS, "loss", 1.0, worker="worker_0")
        trace.add(step, LOSS, "loss", 1.0 - step / 2, worker="worker_1")
        trace.add(step, "other", "loss", 1.0, worker="worker_1")
    found, _ = judge(rule(), trace)
    assert [(finding.worker, finding.tensor) for finding in found] == [
        ("worker_0", LOSS),
        ("worker_1", "other"),
    ]


def test_what_is_judged_can_be_named_instead_of_the_losses_collection() -> None:
    trace = losses([1.0, 1.0])
    trace.add(0, "score", "scalar", 1.0).add(1, "score", "scalar", 1.0)
    named = rule(tensor_regex="^score$", use_losses_collection=False)
    assert [finding.tensor for finding in judge(named, trace)[0]] == ["score"]
    both = rule(tensor_regex="^score$")
    assert {finding.tensor for finding in judge(both, trace)[0]} == {LOSS, "score"}


@pytest.mark.parametrize(
    "parameters",
    [
        {"num_steps": 0},
        {"diff_percent": 100.0},
        {"diff_percent": -1.0},
        {"increase_threshold_percent": -1.0},
        {"mode": "PREDICT"},
        {"patience": 0},
        {"smoothing_steps": 0},
        {"use_losses_collection": False},
        {"tensor_regex": "["},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LossNotDecreasing(**parameters)


def with_rate(place: Path, rate: float, steps: int = 80) -> Path:
    return train(
        place, network(), blobs(steps), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate)
    )


@pytest.mark.proves("TDC103", "fires")
def test_a_learning_rate_of_zero_is_found(tmp_path: Path) -> None:
    found, _ = judge_run(LossNotDecreasing(), with_rate(tmp_path, 0.0, 160))
    assert {finding.tensor for finding in found} == {LOSS}


@pytest.mark.proves("TDC103", "quiet")
def test_a_training_whose_loss_falls_stays_quiet(tmp_path: Path) -> None:
    found, verdict = judge_run(LossNotDecreasing(), with_rate(tmp_path, 0.01))
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.proves("TDC103", "not evaluable")
def test_a_training_without_validation_is_not_evaluable_in_eval_mode(losses_run: Path) -> None:
    _, verdict = judge_run(LossNotDecreasing(mode="EVAL"), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="losses"' in verdict.fix


def test_windows_do_not_matter() -> None:
    random = np.random.default_rng(0)
    values = (2.0 + 0.1 * random.normal(size=120)).tolist()
    assert same_in_any_cuts(LossNotDecreasing(), losses(values))


def test_a_loss_that_has_converged_is_not_reported_unless_as_the_older_rule() -> None:
    flat = [1.0, *[0.0009 + 1e-6 * (step % 7) for step in range(400)]]
    assert not judge(LossNotDecreasing(num_steps=10), losses(flat))[0]
    assert judge(LossNotDecreasing(num_steps=10, compat=True), losses(flat))[0]
    assert judge(LossNotDecreasing(num_steps=10), losses([1.0, *[0.002] * 400]))[0]


def test_a_flat_training_loss_is_reported_in_a_run_that_validates_too_seldom_to_judge_eval() -> None:
    trace, step, mode_steps = Trace(), 0, {"TRAIN": 0, "EVAL": 0}
    for _ in range(4):
        for mode in ["TRAIN"] * 60 + ["EVAL"] * 2:
            trace.add(step, LOSS, "loss", 2.3, mode=mode, mode_step=mode_steps[mode])
            mode_steps[mode] += 1
            step += 1
    found = same_in_any_cuts(LossNotDecreasing(), trace)
    assert {finding.mode for finding in found} == {"TRAIN"}
