"""WeightUpdateRatio: the change of weights per step, from values and from statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdcore.errors import ConfigError
from tdcore.rules import Engine, Status, WeightUpdateRatio
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, judge_of, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network, train

W = "Net_fc.weight"
G = "gradient/" + W
UNIT = np.array([0.6, 0.8])  # of norm 1


def weights(*values: Any, every: int = 1, payload: bool = True, gradient: float | None = None) -> Trace:
    """Return a trace of a weight, and the gradient of each step, at steps 0, every, ..."""
    trace = Trace()
    for at, each in enumerate(values):
        trace.add(at * every, W, "weight", np.asarray(each, dtype=np.float64), payload=payload)
        if gradient is not None:
            trace.add(at * every, G, "gradient", [gradient])
    return trace


def kinds(rule: WeightUpdateRatio, trace: Trace) -> list[tuple[int, object]]:
    return [(finding.step, finding.numbers["kind"]) for finding in same_in_any_cuts(rule, trace)]


def with_rate(place: Path, rate: float, *, values: bool = True, steps: int = 14) -> Path:
    return train(
        place,
        network(),
        blobs(steps),
        collections=["weights", "gradients"],
        values=values,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
    )


@pytest.mark.proves("TDC118", "fires")
def test_steps_of_many_times_the_size_of_the_weights_are_found(tmp_path: Path) -> None:
    found, _ = judge_run(WeightUpdateRatio(), with_rate(tmp_path, 3000.0, steps=4))
    assert (1, "large") in {(finding.step, finding.numbers["kind"]) for finding in found}


@pytest.mark.proves("TDC118", "fires")
def test_a_learning_rate_of_zero_leaves_all_weights_stuck(tmp_path: Path) -> None:
    found, _ = judge_run(WeightUpdateRatio(), with_rate(tmp_path, 0.0))
    assert {(finding.step, finding.numbers["kind"]) for finding in found} == {(10, "stuck")}
    assert len(found) == 3


@pytest.mark.proves("TDC118", "quiet")
@pytest.mark.parametrize("run", ["healthy_run", "statistics_run"])
def test_a_training_that_learns_stays_quiet(run: str, request: pytest.FixtureRequest) -> None:
    found, verdict = judge_run(WeightUpdateRatio(), request.getfixturevalue(run))
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged == 23 * 3
    assert not verdict.missing


@pytest.mark.proves("TDC118", "not evaluable")
def test_a_run_without_weights_is_not_evaluable(losses_run: Path) -> None:
    _, verdict = judge_run(WeightUpdateRatio(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="weights"' in verdict.fix
    assert "save_raw_tensor=True" in verdict.fix


@pytest.mark.proves("TDC118", "boundary")
@pytest.mark.parametrize(("size", "fires"), [(2.99, False), (3.0, False), (3.01, True)])
def test_a_ratio_at_the_large_threshold_does_not_fire_and_above_it_does(size: float, fires: bool) -> None:
    rule = WeightUpdateRatio(large_threshold=2.0, epsilon=1e-300)
    assert bool(kinds(rule, weights([0.0, 1.0], [0.0, size]))) == fires


@pytest.mark.proves("TDC118", "boundary")
@pytest.mark.parametrize(("change", "fires"), [(0.249, True), (0.25, False), (0.251, False)])
def test_a_ratio_at_the_small_threshold_does_not_fire_and_below_it_does(change: float, fires: bool) -> None:
    rule = WeightUpdateRatio(small_threshold=0.25, epsilon=1e-300)
    assert bool(kinds(rule, weights([0.0, 1.0], [0.0, 1.0 + change]))) == fires


def test_the_ratio_is_per_step_unless_it_is_the_older_one() -> None:
    trace = weights(UNIT, 31 * UNIT, every=10)
    assert not kinds(WeightUpdateRatio(), trace)
    assert kinds(WeightUpdateRatio(compat=True), trace) == [(10, "large")]


def test_a_start_at_zero_is_not_judged_unless_it_is_the_older_rule() -> None:
    trace = weights(0 * UNIT, UNIT, 1.001 * UNIT)
    found, verdict = judge(WeightUpdateRatio(), trace)
    assert not found
    assert verdict.missing == {
        "the earlier norm of the weight was below epsilon (weights that start at zero)": 1
    }
    assert kinds(WeightUpdateRatio(compat=True), trace) == [(1, "large")]


def test_a_frozen_weight_is_not_reported() -> None:
    frozen = weights(*[UNIT] * 20)
    for step in range(20):
        frozen.add(step, G, "gradient", None, status="absent")
    assert not kinds(WeightUpdateRatio(), frozen)
    assert not kinds(WeightUpdateRatio(), weights(*[UNIT] * 20, gradient=0.0))
    assert kinds(WeightUpdateRatio(compat=True), weights(UNIT, UNIT)) == [(1, "small")]


def test_a_weight_that_ignores_its_gradient_is_stuck_once_until_it_moves() -> None:
    trace = weights(*[UNIT] * 5, *[2 * UNIT] * 4, gradient=1.0)
    assert kinds(WeightUpdateRatio(still_steps=3), trace) == [(3, "stuck"), (8, "stuck")]


def test_accumulated_gradients_do_not_make_a_weight_stuck() -> None:
    values = [UNIT * (1 + 0.01 * (step // 4)) for step in range(40)]
    assert not kinds(WeightUpdateRatio(), weights(*values, gradient=1.0))


def test_no_change_without_a_captured_gradient_is_not_judged() -> None:
    _, verdict = judge(WeightUpdateRatio(), weights(UNIT, UNIT))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "its gradient was not captured" in verdict.reason


def test_the_oldest_save_within_num_steps_is_compared_with() -> None:
    trace = weights(*[UNIT * size for size in (1.0, 1.0, 30.0, 30.0)], gradient=1.0)
    assert kinds(WeightUpdateRatio(num_steps=2), trace) == [(2, "large"), (3, "large")]
    numbers = judge(WeightUpdateRatio(num_steps=2), trace)[0][1].numbers
    assert (numbers["since_step"], numbers["steps"]) == (1, 2)
    assert numbers["ratio"] == pytest.approx(29 / 2)


def test_statistics_decide_when_their_bounds_do() -> None:
    trace = weights(UNIT, 1.01 * UNIT, 20 * UNIT, 21 * UNIT, 21 * 9.5 * UNIT, payload=False)
    found, verdict = judge(WeightUpdateRatio(), trace)
    assert [(finding.step, finding.numbers["kind"]) for finding in found] == [(2, "large")]
    assert "at least 18.8" in found[0].why
    assert verdict.missing == {
        "the weight was saved without its values, and its statistics are not enough to judge": 1
    }
    assert verdict.judged == 3


def test_values_that_are_saved_at_some_steps_only_do_not_break_the_comparison() -> None:
    trace = Trace()
    for step, size in enumerate((1.0, 1.01, 20.0, 20.1, 20.2, 500.0)):
        trace.add(step, W, "weight", size * UNIT, payload=step in (2, 3))
    assert kinds(WeightUpdateRatio(), trace) == [(2, "large"), (5, "large")]


def test_validation_steps_and_weights_that_are_not_finite_are_left_out() -> None:
    trace = Trace()
    for step, (mode, size) in enumerate([("TRAIN", 1.0), ("EVAL", 50.0), ("TRAIN", 1.01), ("TRAIN", np.nan)]):
        trace.add(step, W, "weight", size * UNIT, mode=mode, payload=True)
    assert not kinds(WeightUpdateRatio(), trace)


def test_parameters_of_the_older_rule_come_as_text() -> None:
    rule = load_rule("WeightUpdateRatio:num_steps=100,large_threshold=5,small_threshold=1e-7,epsilon=1e-8")
    assert rule == WeightUpdateRatio(num_steps=100, large_threshold=5.0, small_threshold=1e-7, epsilon=1e-8)


@pytest.mark.parametrize(
    "parameters",
    [
        {"num_steps": 0},
        {"large_threshold": 0.0},
        {"small_threshold": 20.0},
        {"epsilon": 0.0},
        {"still_steps": 0},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        WeightUpdateRatio(**parameters)


@pytest.mark.parametrize("payload", [True, False])
def test_a_save_that_came_late_is_compared_with_nothing_later(payload: bool) -> None:
    trace = Trace()
    for step, size in ((0, 1.0), (5, 1.1), (3, 1.05), (6, 1.12)):
        trace.add(step, W, "weight", size * UNIT, payload=payload)
    found, verdict = judge(WeightUpdateRatio(), trace)
    assert not found
    assert verdict.status is not Status.ERROR


@pytest.mark.parametrize("payload", [True, False])
def test_a_weight_of_another_size_is_another_weight(payload: bool) -> None:
    found, verdict = judge(
        WeightUpdateRatio(), weights(UNIT, np.ones(5), np.ones(5) * 1.001, payload=payload)
    )
    assert not found
    assert sum(verdict.missing.values()) >= 1


def test_weights_of_attempts_that_have_ended_are_forgotten() -> None:
    trace = Trace()
    for attempt in range(3):
        for step in range(4):
            trace.add(step, W, "weight", (1 + step / 10) * UNIT, attempt=attempt, payload=True)
            trace.add(step, G, "gradient", [1.0], attempt=attempt)
    engine = Engine(trace.source(), [WeightUpdateRatio()])
    engine.step()
    assert not any(judge_of(engine).memory.values())
