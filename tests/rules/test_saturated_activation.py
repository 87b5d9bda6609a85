"""SaturatedActivation: the units that count as saturated, and when a layer is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from tdcore.errors import ConfigError
from tdcore.rules import Engine, SaturatedActivation, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network, train

NAME = "Net_act_input_0"


def inputs(*batches: Any, name: str = NAME, origin: str | None = "Tanh", payload: bool = True) -> Trace:
    trace = Trace()
    for step, values in enumerate(batches):
        trace.add(step, name, "input", values, origin=origin, payload=payload)
    return trace


def layer(units: int, saturated: int, *, batch: int = 100, at: float = 50.0) -> npt.NDArray[np.float64]:
    """Return an output (batch, units): the first `saturated` units are always `at`, the others 0."""
    values = np.zeros((batch, units))
    values[:, :saturated] = at
    return values


def tanh_network(place: Path, scale: float, *, values: bool = True) -> Path:
    """Train a network whose first layer is initialised `scale` times too large."""
    model = network(nn.Tanh)
    with torch.no_grad():
        next(iter(model.parameters())).mul_(scale)
    return train(place, model, blobs(4), collections=["inputs"], values=values)


@pytest.mark.proves("TDC122", "fires")
def test_a_layer_that_starts_far_too_wide_is_found(tmp_path: Path) -> None:
    found, _ = judge_run(SaturatedActivation(), tanh_network(tmp_path, 1000.0))
    assert {finding.tensor for finding in found} == {"1_input_0"}  # the input of the first tanh
    assert [finding.step for finding in found] == [0, 1, 2, 3]


@pytest.mark.proves("TDC122", "quiet")
def test_the_same_network_with_a_usual_start_stays_quiet(tmp_path: Path) -> None:
    found, verdict = judge_run(SaturatedActivation(), tanh_network(tmp_path, 1.0))
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged == 4 * 2


@pytest.mark.proves("TDC122", "not evaluable")
def test_saturation_cannot_be_told_from_statistics_beyond_the_limits(tmp_path: Path) -> None:
    place = tanh_network(tmp_path, 1000.0, values=False)
    _, verdict = judge_run(SaturatedActivation(tensor_regex="^1_", threshold_layer=10.0), place)
    assert verdict.status is Status.NOT_EVALUABLE


@pytest.mark.proves("TDC122", "not evaluable")
def test_a_run_without_inputs_is_not_evaluable_and_the_fix_asks_for_values(losses_run: Path) -> None:
    _, verdict = judge_run(SaturatedActivation(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "save_raw_tensor=True" in verdict.fix
    assert 'module_regex=["^(Tanh|Sigmoid)_input"]' in verdict.fix


@pytest.mark.proves("TDC122", "boundary")
def test_exactly_half_of_the_units_saturated_does_not_fire_and_one_more_does() -> None:
    assert not judge(SaturatedActivation(), inputs(layer(100, 50)))[0]
    found, _ = judge(SaturatedActivation(), inputs(layer(100, 51)))
    assert found[0].numbers["saturated_percent"] == 51.0


@pytest.mark.proves("TDC122", "boundary")
def test_a_unit_active_for_exactly_the_threshold_is_not_saturated() -> None:
    values = layer(2, 2)
    values[0] = 0.0  # 1 of 100
    assert not judge(SaturatedActivation(), inputs(values))[0]
    assert judge(SaturatedActivation(), inputs(np.vstack([values, values[1:2]])))[0]  # 1 of 101


@pytest.mark.proves("TDC122", "boundary")
@pytest.mark.parametrize(
    ("origin", "at", "fires"),
    [
        ("Tanh", 9.4998, False),
        ("Tanh", 9.4999, True),
        ("Tanh", -9.4999, True),
        ("Sigmoid", 9.4999, False),
        ("Sigmoid", 16.9999, False),
        ("Sigmoid", 17.0, True),
        ("Sigmoid", -22.9, False),
        ("Sigmoid", -23.0, True),
    ],
)
def test_each_function_has_its_limits_and_at_the_limit_it_is_saturated(
    origin: str, at: float, fires: bool
) -> None:
    assert bool(judge(SaturatedActivation(), inputs(layer(4, 4, at=at), origin=origin))[0]) == fires


def test_the_limits_follow_the_name_where_there_is_no_module() -> None:
    values = layer(4, 4, at=12.0)
    assert judge(SaturatedActivation(), inputs(values, name="net_tanh_input_0", origin=None))[0]
    assert not judge(SaturatedActivation(), inputs(values, name="net_sigmoid_input_0", origin=None))[0]
    _, verdict = judge(SaturatedActivation(tensor_regex="gelu"), inputs(values, name="gelu_0", origin="GELU"))
    assert "neither the module class nor the name contains tanh or sigmoid" in verdict.reason


def test_channels_are_the_units_of_a_convolution() -> None:
    values = np.full((2, 4, 3, 3), 50.0)
    values[0, 0, 1, 1] = 0.0
    found, _ = judge(SaturatedActivation(), inputs(values))
    assert (found[0].numbers["units"], found[0].numbers["saturated_units"]) == (4, 3)


def test_layers_within_the_limits_are_not_read() -> None:
    source = inputs(layer(10, 10, at=9.0)).source()
    source._payloads.clear()  # reading the value would raise
    engine = Engine(source, [SaturatedActivation()])
    engine.step()
    (verdict,) = engine.verdicts(finished=True)
    assert verdict.status is Status.NO_ISSUE
    assert not verdict.missing


def test_outputs_of_the_modules_are_not_inputs() -> None:
    trace = Trace().add(0, "1_output_0", "output", layer(4, 4), origin="Tanh", payload=True)
    assert judge(SaturatedActivation(), trace)[1].status is Status.NOT_EVALUABLE


def test_nan_and_infinity_count_as_saturated() -> None:
    assert judge(SaturatedActivation(), inputs(np.full((4, 4), np.nan)))[0]
    assert judge(SaturatedActivation(), inputs(np.full((4, 4), np.inf)))[0]


def test_an_axis_that_does_not_exist_is_noted() -> None:
    _, verdict = judge(SaturatedActivation(unit_axis=4), inputs(layer(4, 4)))
    assert "unit_axis 4 does not exist" in verdict.reason


def test_windows_do_not_matter() -> None:
    trace = inputs(layer(4, 4), layer(4, 0), layer(4, 3), layer(4, 2))
    assert [finding.step for finding in same_in_any_cuts(SaturatedActivation(), trace)] == [0, 2]


def test_parameters_of_the_older_rule_come_as_text() -> None:
    rule = load_rule(
        "saturated_activation:tensor_regex=.*tanh_input,.*gate_input,threshold_tanh_min=-5,"
        "threshold_tanh_max=5,threshold_inactivity=2"
    )
    assert rule == SaturatedActivation(
        tensor_regex=".*tanh_input,.*gate_input",
        threshold_tanh_min=-5.0,
        threshold_tanh_max=5.0,
        threshold_inactivity=2.0,
    )


@pytest.mark.parametrize(
    "parameters",
    [
        {"threshold_layer": 101.0},
        {"threshold_inactivity": -1.0},
        {"threshold_tanh_min": 10.0},
        {"threshold_sigmoid_max": -30.0},
        {"tensor_regex": "("},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SaturatedActivation(**parameters)
