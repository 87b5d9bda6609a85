"""DeadRelu: the units that count as dead, and when a layer is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from tdcore.errors import ConfigError
from tdcore.rules import DeadRelu, Status
from tdcore.rules.measures.units import unit_activity
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import CLASSES, FEATURES, blobs, judge_run, network, train

NAME = "Net_act_output_0"


def outputs(
    *batches: npt.NDArray[Any], name: str = NAME, origin: str | None = "ReLU", payload: bool = True
) -> Trace:
    trace = Trace()
    for step, values in enumerate(batches):
        trace.add(step, name, "output", values, origin=origin, payload=payload)
    return trace


def layer(units: int, dead: int, batch: int = 100, active: int = 10) -> npt.NDArray[Any]:
    """Return an output (batch, units).

    The first `dead` units are always zero, the others are active for the first `active` inputs.
    """
    values = np.zeros((batch, units))
    values[:active, dead:] = 1.0
    return values


@pytest.mark.proves("TDC104", "boundary")
def test_exactly_half_of_the_units_dead_does_not_fire_and_one_more_does() -> None:
    assert not judge(DeadRelu(), outputs(layer(100, 50)))[0]
    found, _ = judge(DeadRelu(), outputs(layer(100, 51)))
    assert found[0].numbers["dead_percent"] == 51.0


@pytest.mark.proves("TDC104", "boundary")
def test_a_unit_active_for_exactly_the_threshold_is_alive_and_below_it_dead() -> None:
    assert not judge(DeadRelu(threshold_inactivity=1.0), outputs(layer(10, 0, active=1)))[0]
    assert judge(DeadRelu(threshold_inactivity=1.0), outputs(layer(10, 0, batch=101, active=1)))[0]


def test_a_sparse_layer_without_dead_units_stays_quiet() -> None:
    sparse = np.eye(50)  # 98 % zeros, but each unit is active for one input
    found, verdict = judge(DeadRelu(), outputs(sparse))
    assert not found
    assert verdict.judged == 1


def test_channels_are_the_units_of_a_convolution() -> None:
    values = np.zeros((2, 4, 3, 3))
    values[0, 0, 1, 1] = 1.0
    found, _ = judge(DeadRelu(), outputs(values))
    assert (found[0].numbers["units"], found[0].numbers["dead_units"]) == (4, 3)
    assert found[0].numbers["values_per_unit"] == 18


def test_every_index_beside_the_batch_is_a_unit_otherwise() -> None:
    active, total = unit_activity(np.ones((5, 2, 3), dtype=np.bool_))
    assert (active.tolist(), total) == ([5] * 6, 5)


def test_the_axis_of_units_can_be_named() -> None:
    active, total = unit_activity(np.ones((5, 2, 3), dtype=np.bool_), -1)
    assert (active.tolist(), total) == ([10] * 3, 10)


def test_an_axis_that_does_not_exist_is_noted() -> None:
    _, verdict = judge(DeadRelu(unit_axis=4), outputs(layer(10, 9)))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "unit_axis 4 does not exist" in verdict.reason


def test_an_output_without_a_batch_is_a_batch_of_one() -> None:
    active, total = unit_activity(np.array([False, True, True]))
    assert (active.tolist(), total) == ([0, 1, 1], 1)


def test_statistics_alone_are_not_evaluable_however_many_zeros_there_are() -> None:
    _, verdict = judge(DeadRelu(), outputs(layer(10, 10), payload=False))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "saved without its values" in verdict.reason
    assert "include_regex" in verdict.fix


def test_layers_are_found_by_module_class_or_by_the_older_names() -> None:
    bad = layer(10, 9)
    assert judge(DeadRelu(), outputs(bad, origin="torch.nn.modules.activation.ReLU6"))[0]
    assert judge(DeadRelu(), outputs(bad, name="Net_relu_output_0", origin=None))[0]
    assert judge(DeadRelu(), outputs(bad, name="ReLU_output_0", origin=None))[0]
    assert judge(DeadRelu(), outputs(bad, origin="Sigmoid"))[1].status is Status.NOT_EVALUABLE


def test_a_pattern_chooses_the_layers_instead() -> None:
    trace = outputs(layer(10, 9)).add(0, "gelu_output_0", "output", layer(10, 9), origin="GELU", payload=True)
    found, _ = judge(DeadRelu(tensor_regex="^gelu"), trace)
    assert [finding.tensor for finding in found] == ["gelu_output_0"]


def test_layers_with_few_zeros_are_not_read() -> None:
    source = outputs(np.ones((10, 10))).source()
    source._payloads.clear()  # reading the value would raise
    from tdcore.rules.engine import Engine

    engine = Engine(source, [DeadRelu()])
    engine.step()
    (verdict,) = engine.verdicts(finished=True)
    assert verdict.status is Status.NO_ISSUE
    assert not verdict.missing


@pytest.mark.parametrize("dead", range(11))
def test_sparing_the_read_never_changes_the_verdict(dead: int) -> None:
    values = np.ones((100, 10))
    values[:, :dead] = 0
    found, _ = judge(DeadRelu(), outputs(values))
    assert bool(found) == (dead > 5)


def test_a_layer_that_cannot_be_read_is_noted_and_the_others_are_judged() -> None:
    trace = outputs(layer(10, 9), layer(10, 9))
    del trace.payloads[0]
    found, verdict = judge(DeadRelu(), trace)
    assert [finding.step for finding in found] == [1]
    assert verdict.missing == {"ReLU output could not be read (TensorUnavailableForStep)": 1}


def test_pooling_judges_activity_over_several_steps() -> None:
    # Each unit is active at one of two steps only.
    first, second = np.zeros((4, 10)), np.zeros((4, 10))
    first[:, :3], second[:, 3:] = 1.0, 1.0
    assert [finding.step for finding in judge(DeadRelu(), outputs(first, second))[0]] == [0]
    found, verdict = judge(DeadRelu(pool_steps=2), outputs(first, second))
    assert not found
    assert verdict.judged == 1
    found, _ = judge(DeadRelu(pool_steps=2), outputs(first, first, second, second))
    assert [finding.step for finding in found] == [1]


def test_nan_does_not_count_as_active() -> None:
    values = np.full((10, 10), np.nan)
    assert judge(DeadRelu(), outputs(values))[0][0].numbers["dead_units"] == 10


@pytest.mark.parametrize(
    "parameters",
    [{"threshold_layer": 101.0}, {"threshold_inactivity": -1.0}, {"pool_steps": 0}, {"tensor_regex": "("}],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DeadRelu(**parameters)


@pytest.mark.proves("TDC104", "fires")
def test_a_layer_whose_biases_are_far_below_zero_is_found(tmp_path: Path) -> None:
    model = network()
    with torch.no_grad():
        list(model.parameters())[1][:20].fill_(-100.0)  # of 32
    found, _ = judge_run(DeadRelu(), train(tmp_path, model, blobs(2), collections=["outputs"], values=True))
    assert [(finding.step, finding.tensor) for finding in found] == [(0, "1_output_0"), (1, "1_output_0")]
    assert int(found[0].numbers["dead_units"]) >= 20


@pytest.mark.proves("TDC104", "quiet")
def test_the_same_network_with_usual_biases_stays_quiet(healthy_run: Path) -> None:
    found, verdict = judge_run(DeadRelu(), healthy_run)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged == 24 * 2


@pytest.mark.proves("TDC104", "not evaluable")
def test_a_run_without_outputs_is_not_evaluable_and_the_fix_asks_for_values(losses_run: Path) -> None:
    _, verdict = judge_run(DeadRelu(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "save_raw_tensor=True" in verdict.fix


def test_windows_do_not_matter() -> None:
    trace = outputs(*[layer(10, dead) for dead in (9, 0, 9, 9, 0, 9)])
    assert [finding.step for finding in same_in_any_cuts(DeadRelu(), trace)] == [0, 2, 3, 5]
    assert same_in_any_cuts(DeadRelu(pool_steps=2), trace)


class Functional(nn.Module):
    """A network whose activation is a function."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(FEATURES, 32), nn.Linear(32, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(nn.functional.relu(self.hidden(inputs))))


def test_a_model_whose_activations_are_functions_is_not_judged_and_the_verdict_names_the_reason(
    tmp_path: Path,
) -> None:
    place = train(tmp_path, Functional(), blobs(4), collections=["outputs"], values=True)
    found, verdict = judge_run(DeadRelu(), place)
    assert not found
    assert verdict.status in (Status.NOT_APPLICABLE, Status.NOT_EVALUABLE)
    assert "F.relu" in verdict.reason
