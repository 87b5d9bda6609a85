"""PoorWeightInitialization: the conditions of a poor start, and when it is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tdcore.errors import ConfigError
from tdcore.rules import PoorWeightInitialization, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network, train

W = "Net_fc.weight"
LOSS = "CrossEntropyLoss_output_0"
CAPTURED = ["weights", "gradients", "inputs"]


def start(
    place: Path, *, scale: float = 1.0, constant: float | None = None, values: bool = True, **options: Any
) -> Path:
    """Train a deep ReLU network whose hidden weights are `scale` times too large, or constant."""
    model = network(depth=8)
    with torch.no_grad():
        for parameter in list(model.parameters())[:-2]:
            if parameter.dim() == 1:
                parameter.zero_()
            elif constant is not None:
                parameter.fill_(constant)
            else:
                nn.init.kaiming_uniform_(parameter, nonlinearity="relu")
                parameter.mul_(scale)
    return train(place, model, blobs(12), collections=CAPTURED, values=values, **options)


def kinds(rule: PoorWeightInitialization, trace: Trace) -> list[tuple[int, object]]:
    return [(finding.step, finding.numbers["kind"]) for finding in same_in_any_cuts(rule, trace)]


def layers(variances: list[float], losses: list[float], *, payload: bool = False) -> Trace:
    """Return a trace of inputs of ReLU layers with these variances at every step, and losses."""
    trace = Trace()
    for step, loss in enumerate(losses):
        for at, variance in enumerate(variances):
            values = np.sqrt(variance) * np.array([-1.0, 1.0])
            trace.add(step, f"act{at}_input_0", "input", values, origin="ReLU", payload=payload)
        trace.add(step, LOSS, "loss", loss)
    return trace


def gradients(ranges: list[float], losses: list[float], *, payload: bool = True) -> Trace:
    """Return a trace of gradients with these values of p95 - p5, and losses."""
    trace = Trace()
    for step, loss in enumerate(losses):
        trace.add(step, LOSS, "loss", loss)
        for at, width in enumerate(ranges):
            values = width / 0.9 * np.linspace(-0.5, 0.5, 41)
            trace.add(step, f"gradient/l{at}.weight", "gradient", values, payload=payload)
    return trace


STANDS = [2.0] * 10
FALLS = [2.0 * 0.9**step for step in range(10)]


@pytest.mark.proves("TDC117", "fires")
def test_a_start_a_fifth_as_wide_as_it_should_be_is_found(tmp_path: Path) -> None:
    found, _ = judge_run(PoorWeightInitialization(), start(tmp_path, scale=0.2))
    assert {finding.numbers["kind"] for finding in found} == {"variance"}
    assert {finding.step for finding in found} == {9}


@pytest.mark.proves("TDC117", "fires")
@pytest.mark.parametrize("values", [True, False])
def test_weights_that_all_start_at_one_number_are_found(tmp_path: Path, values: bool) -> None:
    found, _ = judge_run(PoorWeightInitialization(), start(tmp_path, constant=0.05, values=values))
    alike = [finding for finding in found if finding.numbers["kind"] == "equal_weights"]
    assert {finding.tensor for finding in alike} == {f"Sequential_{at}.weight" for at in range(0, 16, 2)}
    assert {finding.step for finding in alike} == {0}


def test_variances_that_differ_beyond_all_measure_are_found_although_the_loss_falls(tmp_path: Path) -> None:
    place = start(tmp_path, scale=30.0, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    (finding,) = judge_run(PoorWeightInitialization(), place)[0]
    assert finding.numbers["kind"] == "variance"
    assert float(finding.numbers["ratio"]) > 1e10
    assert float(finding.numbers["loss_progress"]) > 0.01


def test_a_ratio_is_extreme_above_a_hundred_million() -> None:
    assert kinds(PoorWeightInitialization(), layers([1.0, 1.0, 1.01e8], FALLS)) == [(9, "variance")]
    assert not kinds(PoorWeightInitialization(), layers([1.0, 1.0, 0.99e8], FALLS))


@pytest.mark.proves("TDC117", "quiet")
def test_the_same_network_with_he_initialisation_stays_quiet(tmp_path: Path) -> None:
    found, verdict = judge_run(PoorWeightInitialization(), start(tmp_path))
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.proves("TDC117", "not evaluable")
def test_a_run_with_losses_only_is_not_evaluable(losses_run: Path) -> None:
    _, verdict = judge_run(PoorWeightInitialization(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="gradients"' in verdict.fix
    assert "end_step=10" in verdict.fix


@pytest.mark.proves("TDC117", "boundary")
@pytest.mark.parametrize(("ratio", "fires"), [(9.9, False), (10.1, True)])
def test_the_ratio_of_variances_must_exceed_the_threshold(ratio: float, fires: bool) -> None:
    assert kinds(PoorWeightInitialization(), layers([1.0, 1.0, ratio], STANDS)) == [(9, "variance")] * fires
    assert kinds(PoorWeightInitialization(), layers([ratio, 1.0, 1.0], STANDS)) == [(9, "variance")] * fires
    exact = PoorWeightInitialization(threshold=4.0)
    assert not judge(exact, layers([1.0, 4.0], STANDS))[0]


@pytest.mark.proves("TDC117", "boundary")
@pytest.mark.parametrize(("width", "fires"), [(0.00101, False), (0.00099, True)])
def test_the_range_of_gradients_must_be_below_the_limit(width: float, fires: bool) -> None:
    assert kinds(PoorWeightInitialization(), gradients([1.0, width], STANDS)) == [(9, "gradient")] * fires


@pytest.mark.proves("TDC117", "boundary")
@pytest.mark.parametrize(("fall", "fires"), [(0.009, True), (0.011, False)])
def test_a_loss_that_falls_by_one_per_cent_makes_any_start_a_good_one(fall: float, fires: bool) -> None:
    losses = [1.0] * 5 + [1.0 - fall] * 5
    assert bool(kinds(PoorWeightInitialization(), layers([1.0, 100.0], losses))) == fires


def test_a_loss_that_is_not_finite_does_not_fall() -> None:
    (finding,) = judge(PoorWeightInitialization(), layers([1.0, 100.0], [2.0, float("nan"), *FALLS]))[0]
    assert "the loss is not finite" in finding.why


def test_evidence_must_be_there_at_most_steps() -> None:
    trace = layers([1.0, 1.0], STANDS)
    trace.add(0, "act9_input_0", "input", [-100.0, 100.0], origin="ReLU")
    assert not kinds(PoorWeightInitialization(), trace)


def test_only_the_first_steps_of_training_are_looked_at() -> None:
    trace = layers([1.0, 1.0], FALLS)
    for step in range(10, 30):
        for at in range(2):
            trace.add(step, f"act{at}_input_0", "input", [0.0, 1.0 + 100 * at], origin="ReLU")
        trace.add(step, LOSS, "loss", 5.0)
    assert not kinds(PoorWeightInitialization(), trace)
    late = layers([1.0, 100.0], STANDS)
    for row in late.rows:
        row["mode"] = "EVAL"
    assert judge(PoorWeightInitialization(), late)[1].status is Status.NOT_EVALUABLE


def test_a_training_that_ends_early_is_judged_by_what_there_is() -> None:
    assert kinds(PoorWeightInitialization(), layers([1.0, 100.0], [2.0] * 4)) == [(3, "variance")]


def test_without_losses_the_evidence_is_noted_and_not_reported() -> None:
    trace = layers([1.0, 100.0], STANDS)
    trace.rows = [row for row in trace.rows if row["kind"] != "loss"]
    found, verdict = judge(PoorWeightInitialization(), trace)
    assert not found
    assert verdict.missing == {
        "fewer than two losses were saved, so it is unknown whether the training learns": 1
    }


def test_ranges_of_gradients_are_estimated_where_values_were_not_saved() -> None:
    assert kinds(PoorWeightInitialization(), gradients([1.0, 1e-4], STANDS, payload=False)) == [
        (9, "gradient")
    ]
    assert not kinds(PoorWeightInitialization(), gradients([1.0, 1e-2], STANDS, payload=False))


def test_gradients_of_biases_of_few_elements_or_mostly_zeros_are_left_out() -> None:
    trace = gradients([1.0, 1.0], STANDS)
    for step in range(10):
        trace.add(step, "gradient/n.bias", "gradient", np.full(32, 1e-9))
        trace.add(step, "gradient/s.weight", "gradient", np.full(19, 1e-9))
        trace.add(step, "gradient/e.weight", "gradient", np.r_[np.zeros(31), np.ones(30)])
    assert not kinds(PoorWeightInitialization(), trace)


@pytest.mark.parametrize(
    ("values", "alike"),
    [
        (np.outer([1.0, 2.0, 3.0], np.ones(4)), "weights within each neuron"),
        (np.outer(np.ones(3), [1.0, 2.0, 3.0, 4.0]), "neurons"),
        (np.full((3, 4), 0.5), "weights"),
        (np.arange(12.0).reshape(3, 4), None),
        (np.ones(12), None),  # a weight of a normalisation layer
        (np.ones((1, 12)), None),  # one neuron
        (np.ones((3, 1)) * np.array([[1.0], [2.0], [3.0]]), None),  # one input
        (np.tile(np.arange(9.0).reshape(1, 1, 3, 3), (4, 1, 1, 1)), None),  # depthwise
    ],
)
def test_which_weights_are_alike(values: Any, alike: str | None) -> None:
    found, verdict = judge(PoorWeightInitialization(), Trace().add(0, W, "weight", values, payload=True))
    assert [finding.numbers["equal"] for finding in found] == ([alike] if alike else [])
    assert verdict.judged == 1


def test_weights_of_zeros_are_reported_when_they_are_zero_at_the_third_saved_step_too() -> None:
    zeros, moved = np.zeros((3, 4)), np.arange(12.0).reshape(3, 4)
    for third, expected in ((zeros, [(2, "equal_weights")]), (moved, [])):
        trace = Trace()
        for step, values in enumerate((zeros, zeros, third, zeros)):
            trace.add(step, W, "weight", values)
        assert kinds(PoorWeightInitialization(), trace) == expected


def test_the_older_rule_reports_each_condition_at_once() -> None:
    rule = PoorWeightInitialization(compat=True)
    assert kinds(rule, layers([1.0, 11.0, 1.0], FALLS))[:2] == [(0, "variance"), (1, "variance")]
    assert kinds(rule, gradients([1.0, 0.0009], FALLS))[0] == (0, "gradient")
    assert kinds(rule, layers([1.0, 1.0], [2.0, 1.0, *[1.5] * 5, *FALLS[:3]])) == [
        (6, "loss"),
        (7, "loss"),
        (8, "loss"),
        (9, "loss"),
    ]


def test_parameters_of_the_older_rule_come_as_text() -> None:
    rule = load_rule(
        "poor_weight_initialization:activation_inputs_regex=.*relu_input,.*ReLU_input,threshold=5,"
        "distribution_range=0.01,patience=3,steps=20"
    )
    assert rule == PoorWeightInitialization(
        activation_inputs_regex=".*relu_input,.*ReLU_input",
        threshold=5.0,
        distribution_range=0.01,
        patience=3,
        steps=20,
    )


@pytest.mark.parametrize(
    "parameters",
    [
        {"threshold": 0.5},
        {"distribution_range": -1.0},
        {"patience": 0},
        {"steps": 1},
        {"activation_inputs_regex": "("},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PoorWeightInitialization(**parameters)
