"""LearningRate: the change of weights per step, measured and estimated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tdcore.errors import ConfigError
from tdcore.rules import LearningRate, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network, train

UNIT = np.array([0.6, 0.8])
LOSS = "CrossEntropyLoss_output_0"
Optimizer = Callable[[Any], torch.optim.Optimizer]


def moving(
    ratio: float, *, steps: int = 12, every: int = 1, loss: Callable[[int], float] = lambda step: 1.0
) -> Trace:
    """Return a trace of a weight that grows by this share of its size per save, and a loss."""
    trace, size = Trace(), 1.0
    for at in range(steps):
        trace.add(at * every, "Net_fc.weight", "weight", size * UNIT, payload=True)
        trace.add(at * every, LOSS, "loss", loss(at))
        size *= 1 + ratio
    return trace


def kinds(rule: LearningRate, trace: Trace) -> list[tuple[int, object]]:
    return [(finding.step, finding.numbers["kind"]) for finding in same_in_any_cuts(rule, trace)]


def sgd(rate: float) -> Optimizer:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.5)


def adam(rate: float) -> Optimizer:
    return lambda parameters: torch.optim.Adam(parameters, lr=rate)


def recorded(place: Path, optimizer: Optimizer, *, values: bool) -> Path:
    return train(
        place,
        network(nn.Tanh),
        blobs(16),
        collections=["weights", "gradients", "hyperparameters"],
        values=values,
        optimizer=optimizer,
    )


@pytest.mark.proves("TDC126", "fires")
@pytest.mark.parametrize(
    ("optimizer", "values", "kind", "how"),
    [
        (adam(3.0), True, "too_high", "measured"),
        (sgd(1e-7), True, "too_low", "measured"),
        (sgd(1e-7), False, "too_low", "estimated"),
        (adam(1e-9), False, "too_low", "estimated"),
        (sgd(0.0), True, "too_low", "measured"),
    ],
)
def test_a_learning_rate_that_is_far_off_is_found(
    tmp_path: Path, optimizer: Optimizer, values: bool, kind: str, how: str
) -> None:
    found, _ = judge_run(LearningRate(), recorded(tmp_path, optimizer, values=values))
    step = 5 if kind == "too_high" else 10
    assert [(finding.numbers["kind"], finding.numbers["how"], finding.step) for finding in found] == [
        (kind, how, step)
    ]


@pytest.mark.proves("TDC126", "quiet")
@pytest.mark.parametrize(
    ("optimizer", "values"), [(sgd(0.1), True), (sgd(0.1), False), (adam(1e-3), True), (adam(1e-3), False)]
)
def test_a_usual_learning_rate_stays_quiet(tmp_path: Path, optimizer: Optimizer, values: bool) -> None:
    found, verdict = judge_run(LearningRate(), recorded(tmp_path, optimizer, values=values))
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.proves("TDC126", "not evaluable")
def test_a_run_with_losses_only_is_not_evaluable(losses_run: Path) -> None:
    _, verdict = judge_run(LearningRate(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="hyperparameters"' in verdict.fix
    assert "save_raw_tensor=True" in verdict.fix


@pytest.mark.proves("TDC126", "not evaluable")
def test_statistics_of_weights_without_a_learning_rate_do_not_decide(tmp_path: Path) -> None:
    place = train(tmp_path, network(), blobs(12), collections=["weights", "gradients"])
    _, verdict = judge_run(LearningRate(), place)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "statistics and learning rate are not enough to judge" in verdict.reason


@pytest.mark.proves("TDC126", "boundary")
@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.124, []), (0.125, []), (0.126, [(3, "too_high")]), (0.0313, []), (0.0312, [(3, "too_low")])],
)
def test_a_ratio_at_a_limit_does_not_fire_and_beyond_it_does(
    ratio: float, expected: list[tuple[int, str]]
) -> None:
    rule = LearningRate(too_high=0.125, too_low=0.03125, patience_high=3, patience_low=3)
    trace = Trace()
    for step in range(4):
        trace.add(step, "Net_fc.weight", "weight", [0.0, (1.0 + ratio) ** step], payload=True)
    assert kinds(rule, trace) == expected


@pytest.mark.proves("TDC126", "boundary")
def test_it_takes_patience_comparisons_in_a_row_and_is_told_once() -> None:
    assert not kinds(LearningRate(), moving(0.5, steps=5))
    assert kinds(LearningRate(), moving(0.5, steps=6)) == [(5, "too_high")]
    assert kinds(LearningRate(), moving(0.5, steps=30)) == [(5, "too_high")]
    assert not kinds(LearningRate(), moving(1e-7, steps=10))
    assert kinds(LearningRate(), moving(1e-7, steps=30)) == [(10, "too_low")]


def test_large_steps_are_in_order_while_the_loss_falls() -> None:
    assert not kinds(LearningRate(), moving(0.5, steps=20, loss=lambda at: 0.9**at))
    broken = moving(0.5, steps=20, loss=lambda at: 0.9**at if at < 14 else float("nan"))
    assert kinds(LearningRate(), broken) == [(14, "too_high")]


def test_small_steps_count_only_from_the_start() -> None:
    trace = Trace()
    for step in range(30):
        size = 1.0 + 0.01 * min(step, 5) + 1e-9 * step
        trace.add(step, "Net_fc.weight", "weight", size * UNIT, payload=True)
    assert not kinds(LearningRate(), trace)


def test_the_change_is_taken_per_step() -> None:
    assert not kinds(LearningRate(), moving(0.5, every=10))
    assert kinds(LearningRate(), moving(5e-6, every=100)) == [(1000, "too_low")]


def test_frozen_weights_are_left_out() -> None:
    trace = moving(0.001, steps=20)
    for step in range(20):
        for at in range(5):
            trace.add(step, f"Net_frozen{at}.weight", "weight", UNIT, payload=True)
    assert not kinds(LearningRate(), trace)


def test_the_middle_weight_decides() -> None:
    trace = moving(0.5, steps=20)
    for step in range(20):
        for at in range(2):
            trace.add(step, f"Net_calm{at}.weight", "weight", (1 + 0.001 * step) * UNIT, payload=True)
    assert not kinds(LearningRate(), trace)


def test_workers_are_judged_apart() -> None:
    trace = moving(0.5, steps=12)
    for step in range(12):
        trace.add(step, "Net_fc.weight", "weight", (1 + 0.001 * step) * UNIT, payload=True, worker="worker_1")
    found = same_in_any_cuts(LearningRate(), trace)
    assert [(finding.worker, finding.step) for finding in found] == [("worker_0", 5)]


def test_parameters_come_as_text() -> None:
    rule = load_rule("learning_rate:too_high=0.2,too_low=1e-7,patience_high=3,patience_low=20")
    assert rule == LearningRate(too_high=0.2, too_low=1e-7, patience_high=3, patience_low=20)


@pytest.mark.parametrize(
    "parameters",
    [{"too_high": 0.0}, {"too_low": -1.0}, {"too_low": 0.5}, {"patience_high": 0}, {"patience_low": 0}],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LearningRate(**parameters)
