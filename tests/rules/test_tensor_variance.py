"""TensorVariance: the selected tensors, and the limits of their variance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdcore.errors import ConfigError
from tdcore.rules import Status, TensorVariance
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network, train

W = "Net_fc.weight"
LIMITS = TensorVariance(max_threshold=10.0, min_threshold=1e-5)


def with_rate(place: Path, rate: float) -> Path:
    return train(
        place,
        network(),
        blobs(8),
        collections=["weights"],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
    )


@pytest.mark.proves("TDC120", "fires")
def test_weights_that_a_far_too_large_step_has_scattered_are_found(tmp_path: Path) -> None:
    found, _ = judge_run(LIMITS, with_rate(tmp_path, 300.0))
    assert found
    assert {finding.numbers["kind"] for finding in found} == {"high"}
    assert min(finding.step for finding in found) == 1


@pytest.mark.proves("TDC120", "quiet")
def test_the_same_training_with_small_steps_stays_quiet(tmp_path: Path) -> None:
    found, verdict = judge_run(LIMITS, with_rate(tmp_path, 0.1))
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged == 8 * 3


@pytest.mark.proves("TDC120", "not evaluable")
def test_a_run_with_losses_only_is_not_evaluable(losses_run: Path) -> None:
    _, verdict = judge_run(LIMITS, losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="weights"' in verdict.fix


def test_without_limits_nothing_can_be_judged_and_the_verdict_says_so(healthy_run: Path) -> None:
    _, verdict = judge_run(TensorVariance(), healthy_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "neither max_threshold nor min_threshold is given" in verdict.reason


@pytest.mark.proves("TDC120", "boundary")
@pytest.mark.parametrize(("deviation", "kinds"), [(2.0, []), (2.001, ["high"]), (0.5, []), (0.499, ["low"])])
def test_a_variance_at_a_limit_does_not_fire_and_beyond_it_does(deviation: float, kinds: list[str]) -> None:
    rule = TensorVariance(max_threshold=4.0, min_threshold=0.25)
    found, _ = judge(rule, Trace().add(0, W, "weight", [-deviation, deviation]))
    assert [finding.numbers["kind"] for finding in found] == kinds


def test_the_variance_is_that_of_the_population_of_finite_values() -> None:
    values = np.array([1.0, 2.0, 4.0, np.nan, np.inf])
    found, _ = judge(TensorVariance(max_threshold=0.0), Trace().add(0, W, "weight", values))
    assert found[0].numbers["variance"] == pytest.approx(np.var(values[:3]), rel=1e-12)


def test_one_limit_alone_is_enough() -> None:
    trace = Trace().add(0, W, "weight", [3.0, 3.0])
    assert judge(TensorVariance(min_threshold=1e-5), trace)[0]
    assert not judge(TensorVariance(max_threshold=1e-5), trace)[0]


def test_a_single_value_has_no_variance() -> None:
    _, verdict = judge(TensorVariance(min_threshold=1.0), Trace().add(0, W, "weight", [3.0]))
    assert verdict.status is Status.NOT_EVALUABLE


def test_windows_do_not_matter() -> None:
    trace = Trace()
    for step in range(6):
        trace.add(step, W, "weight", [-float(step), float(step)])
    found = same_in_any_cuts(LIMITS, trace)
    assert [finding.step for finding in found] == [0, 4, 5]


def test_parameters_of_the_older_rule_come_as_text() -> None:
    rule = load_rule("TensorVariance:collection_names=weights,biases,max_threshold=10,min_threshold=0.00001")
    assert rule == TensorVariance(collection_names="weights,biases", max_threshold=10.0, min_threshold=1e-5)


@pytest.mark.parametrize(
    "parameters",
    [
        {"max_threshold": -1.0},
        {"min_threshold": float("nan")},
        {"max_threshold": 1.0, "min_threshold": 2.0},
        {"tensor_regex": "("},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TensorVariance(**parameters)
