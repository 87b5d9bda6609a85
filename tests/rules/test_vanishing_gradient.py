"""VanishingGradient: the gradients that count as vanishing."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from tdcore.errors import ConfigError
from tdcore.rules import Status, VanishingGradient
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network, train

W = "gradient/Net_fc.weight"


@pytest.mark.proves("TDC101", "fires")
def test_a_deep_stack_of_sigmoid_layers_loses_its_first_gradients(tmp_path: Path) -> None:
    place = train(tmp_path, network(nn.Sigmoid, depth=12, width=16), blobs(3), collections=["gradients"])
    found, _ = judge_run(VanishingGradient(), place)
    assert (0, "gradient/Sequential_0.weight") in {(finding.step, finding.tensor) for finding in found}
    assert "gradient/Sequential_24.weight" not in {finding.tensor for finding in found}


@pytest.mark.proves("TDC101", "quiet")
def test_a_stack_of_relu_layers_stays_quiet(statistics_run: Path) -> None:
    found, verdict = judge_run(VanishingGradient(), statistics_run)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged == 24 * 6


@pytest.mark.proves("TDC101", "not evaluable")
def test_a_run_with_losses_only_is_not_evaluable(losses_run: Path) -> None:
    _, verdict = judge_run(VanishingGradient(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="gradients"' in verdict.fix


def test_windows_do_not_matter() -> None:
    trace = Trace()
    for step in range(6):
        trace.add(step, W, "gradient", [1e-9 if step % 2 else 1.0])
    assert [finding.step for finding in same_in_any_cuts(VanishingGradient(), trace)] == [1, 3, 5]


@pytest.mark.proves("TDC101", "boundary")
def test_a_mean_magnitude_at_the_threshold_does_not_fire_and_just_below_it_does() -> None:
    rule = VanishingGradient(threshold=0.5)
    at, _ = judge(rule, Trace().add(0, W, "gradient", [0.5, -0.5]))
    below, _ = judge(rule, Trace().add(0, W, "gradient", [0.5, -0.4999]))
    assert not at
    assert [finding.numbers["abs_mean"] for finding in below] == [pytest.approx(0.49995)]


def test_all_offenders_of_all_steps_are_reported_in_order_of_steps() -> None:
    trace = Trace()
    for step in (10, 0):
        for layer in range(3):
            trace.add(step, f"gradient/Net_l{layer}.weight", "gradient", [1e-9 if layer < 2 else 1.0])
    found, _ = judge(VanishingGradient(), trace)
    assert [(finding.step, finding.tensor[-8]) for finding in found] == [
        (0, "0"),
        (0, "1"),
        (10, "0"),
        (10, "1"),
    ]


def test_positive_and_negative_values_do_not_cancel() -> None:
    found, _ = judge(VanishingGradient(), Trace().add(0, W, "gradient", [1.0, -1.0]))
    assert not found


def test_a_bias_beside_a_weight_with_a_healthy_gradient_is_not_reported() -> None:
    # The gradient of a bias before a normalisation layer is zero, except for rounding.
    trace = Trace().add(0, "gradient/Net_conv.weight", "gradient", [1.0])
    trace.add(0, "gradient/Net_conv.bias", "gradient", [1e-9])
    found, verdict = judge(VanishingGradient(), trace)
    assert not found
    assert verdict.judged == 2
    assert [finding.tensor for finding in judge(VanishingGradient(compat=True), trace)[0]] == [
        "gradient/Net_conv.bias"
    ]


def test_a_bias_is_reported_when_its_weight_vanishes_or_was_healthy_only_elsewhere() -> None:
    trace = Trace().add(0, "gradient/Net_conv.weight", "gradient", [1.0], worker="worker_1")
    trace.add(0, "gradient/Net_conv.bias", "gradient", [1e-9])
    trace.add(5, "gradient/Net_conv.weight", "gradient", [1e-9])
    trace.add(5, "gradient/Net_conv.bias", "gradient", [1e-9])
    found, _ = judge(VanishingGradient(), trace)
    assert [(finding.step, finding.tensor.rpartition(".")[2]) for finding in found] == [
        (0, "bias"),
        (5, "weight"),
        (5, "bias"),
    ]


def test_a_parameter_without_a_gradient_is_not_judged() -> None:
    trace = Trace().add(0, W, "gradient", None, status="absent").add(0, "gradient/b", "gradient", [1.0])
    found, verdict = judge(VanishingGradient(), trace)
    assert not found
    assert verdict.judged == 1
    assert not verdict.missing


def test_only_absent_gradients_are_not_evaluable() -> None:
    _, verdict = judge(VanishingGradient(), Trace().add(0, W, "gradient", None, status="absent"))
    assert verdict.status is Status.NOT_EVALUABLE


def zeros(steps: int, *, loss: float | None = None) -> Trace:
    trace = Trace()
    for step in range(steps):
        trace.add(step, W, "gradient", [0.0, 0.0])
        if loss is not None:
            trace.add(step, "HingeLoss_output_0", "loss", loss)
    return trace


def test_a_gradient_of_zeros_fires_at_the_third_step_unless_zeros_are_ignored() -> None:
    found = same_in_any_cuts(VanishingGradient(), zeros(4))
    assert [finding.step for finding in found] == [2, 3]
    assert "detach()" in found[0].do
    assert not judge(VanishingGradient(ignore_zero=True), zeros(4))[0]
    assert len(judge(VanishingGradient(compat=True), zeros(1))[0]) == 1


def test_steps_whose_loss_is_zero_are_not_judged_unless_as_the_older_rule() -> None:
    assert not judge(VanishingGradient(), zeros(9, loss=0.0))[0]
    assert judge(VanishingGradient(), zeros(9, loss=1e-30))[0]
    assert judge(VanishingGradient(compat=True), zeros(9, loss=0.0))[0]


def test_a_small_gradient_is_compared_with_the_last_layer_before_the_activation_is_blamed() -> None:
    (finding,) = judge(VanishingGradient(), Trace().add(0, W, "gradient", [1e-9]))[0]
    assert finding.do.startswith("compare with the gradient of the last layer")


def test_a_gradient_without_a_finite_value_is_left_to_exploding_tensor() -> None:
    trace = Trace().add(0, W, "gradient", [float("nan")]).add(0, "gradient/b", "gradient", [1.0])
    found, verdict = judge(VanishingGradient(), trace)
    assert not found
    assert verdict.judged == 1


def test_the_mean_is_over_finite_values() -> None:
    found, _ = judge(VanishingGradient(), Trace().add(0, W, "gradient", [float("inf"), 1e-9]))
    assert [finding.numbers["abs_mean"] for finding in found] == [1e-9]


def test_weights_and_outputs_are_not_gradients() -> None:
    trace = Trace().add(0, "Net_fc.weight", "weight", [1e-9]).add(0, "Net_output_0", "output", [1e-9])
    found, verdict = judge(VanishingGradient(), trace)
    assert not found
    assert verdict.status is Status.NOT_EVALUABLE
    assert "output, weight" in verdict.reason


def test_tensors_that_the_user_put_into_the_collection_are_judged_too() -> None:
    trace = Trace(collections={"gradients": ["my_gradient"]}).add(0, "my_gradient", "custom", [1e-9])
    found, _ = judge(VanishingGradient(), trace)
    assert [finding.tensor for finding in found] == ["my_gradient"]


def test_a_skipped_gradient_is_noted_in_the_verdict() -> None:
    trace = Trace().add(0, W, "gradient", None, status="skipped", reason="ring_full")
    trace.add(0, "gradient/b", "gradient", [1.0])
    _, verdict = judge(VanishingGradient(), trace)
    assert verdict.text == "no issue (1 not judged: gradient not captured)"


@pytest.mark.parametrize("threshold", [0.0, -1.0, float("nan"), float("inf")])
def test_a_threshold_that_cannot_work_is_refused(threshold: float) -> None:
    with pytest.raises(ConfigError, match=r"VanishingGradient\.threshold must be a number above 0"):
        VanishingGradient(threshold=threshold)
