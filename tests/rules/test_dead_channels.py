"""DeadChannels: the channels that are dead or duplicates, and when a layer is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from tdcore.errors import ConfigError
from tdcore.rules import DeadChannels, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import CLASSES, blobs, judge_run, train

NAME = "Net_conv_output_0"
Values = npt.NDArray[np.float64]


def random(channels: int, *, batch: int = 8, space: tuple[int, ...] = (4, 4)) -> Values:
    return np.random.default_rng(0).normal(0.0, 1.0, (batch, channels, *space))


def output(values: Any, *, origin: str | None = "Conv2d", payload: bool = True, name: str = NAME) -> Trace:
    return Trace().add(0, name, "output", values, origin=origin, payload=payload)


def kinds(trace: Trace, rule: DeadChannels | None = None) -> list[object]:
    return [finding.numbers["kind"] for finding in same_in_any_cuts(rule or DeadChannels(), trace)]


def convolutions(place: Path, fault: Callable[[nn.Conv2d], object], *, values: bool = True) -> Path:
    """A small convolutional network; `fault` is applied to its first layer after each step."""
    torch.manual_seed(0)
    layer = nn.Conv2d(1, 8, 3, padding=1)
    model = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, CLASSES))

    def after_step(step: int, model: nn.Module) -> None:
        with torch.no_grad():
            fault(layer)

    pictures = [(inputs.reshape(-1, 1, 4, 4), labels) for inputs, labels in blobs(3)]
    return train(place, model, pictures, collections=["outputs"], values=values, after_step=after_step)


def zeroed(layer: nn.Conv2d) -> None:
    layer.weight[:3].zero_()


def copied(layer: nn.Conv2d) -> None:
    layer.weight[1:4].copy_(layer.weight[:1])
    assert layer.bias is not None
    layer.bias[1:4].copy_(layer.bias[:1])


@pytest.mark.proves("TDC127", "fires")
@pytest.mark.parametrize(("kind", "fault"), [("dead", zeroed), ("duplicate", copied)])
def test_filters_that_are_set_to_zero_or_to_each_other_are_found(
    tmp_path: Path, kind: str, fault: Callable[[nn.Conv2d], object]
) -> None:
    found, _ = judge_run(DeadChannels(), convolutions(tmp_path, fault))
    assert [(finding.step, finding.tensor, finding.numbers["kind"]) for finding in found] == [
        (1, "0_output_0", kind),
        (2, "0_output_0", kind),
    ]
    assert found[0].numbers[kind] == 3


@pytest.mark.proves("TDC127", "quiet")
def test_the_same_network_without_a_mask_stays_quiet(tmp_path: Path) -> None:
    found, verdict = judge_run(DeadChannels(), convolutions(tmp_path, lambda layer: None))
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged == 3 * 2


@pytest.mark.proves("TDC127", "not evaluable")
def test_statistics_of_outputs_are_not_enough(tmp_path: Path) -> None:
    _, verdict = judge_run(DeadChannels(), convolutions(tmp_path, lambda layer: None, values=False))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "save_raw_tensor=True" in verdict.fix
    _, verdict = judge(DeadChannels(), output(random(4), payload=False))
    assert "saved without its values" in verdict.reason


@pytest.mark.proves("TDC127", "boundary")
@pytest.mark.parametrize(("number", "fires"), [(1, False), (2, False), (3, True)])
def test_a_tenth_of_the_channels_does_not_fire_and_more_does(number: int, fires: bool) -> None:
    dead, copies = random(20), random(20)
    dead[:, :number] = 0.5
    copies[:, 10 : 10 + number] = copies[:, :1]
    assert kinds(output(dead)) == ["dead"] * fires
    assert kinds(output(copies)) == ["duplicate"] * fires


@pytest.mark.proves("TDC127", "boundary")
@pytest.mark.parametrize(("change", "fires"), [(0.9e-4, True), (1.1e-4, False)])
def test_a_difference_within_the_tolerance_is_none(change: float, fires: bool) -> None:
    values = random(4)
    signs = np.where(np.arange(8 * 16) % 2, 1.0, -1.0).reshape(8, 4, 4)
    values[:, 1] = values[:, 0] + change * values[:, 0].std() * signs
    assert bool(kinds(output(values))) == fires
    flat = random(4)
    flat[:, 0] = 1.0
    flat[0, 0, 0, 0] = 1.0 - change
    assert bool(kinds(output(flat))) == fires


def test_the_first_of_several_copies_is_no_duplicate() -> None:
    values = random(4)
    values[:] = values[:, :1]
    (finding,) = judge(DeadChannels(), output(values))[0]
    assert (finding.numbers["duplicate"], finding.numbers["first"]) == (3, 1)


def test_channels_that_differ_by_a_factor_or_an_offset_are_no_duplicates() -> None:
    values = random(4)
    values[:, 1], values[:, 2], values[:, 3] = 2 * values[:, 0], -values[:, 0], values[:, 0] + 1
    assert not kinds(output(values))


def test_many_channels_are_compared_in_blocks() -> None:
    values = random(600, space=())
    values = np.concatenate([values, values[:, :100]], axis=1)
    values = np.concatenate([values, 3 + values], axis=0)
    (finding,) = judge(DeadChannels(), output(values, origin="Linear"))[0]
    assert (finding.numbers["duplicate"], finding.numbers["first"]) == (100, 600)


def test_channels_of_a_linear_layer_are_on_the_last_axis() -> None:
    values = np.random.default_rng(0).normal(0.0, 1.0, (2, 10, 5))
    values[..., 0] = 1.0
    (finding,) = judge(DeadChannels(), output(values, origin="torch.nn.Linear"))[0]
    assert (finding.numbers["channels"], finding.numbers["values_per_channel"]) == (5, 20)
    (other,) = judge(DeadChannels(tensor_regex="conv", channel_axis=2), output(values, origin=None))[0]
    assert other.numbers == finding.numbers


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (random(4, batch=1, space=(15,)), "fewer than 2 channels or 16 values per channel"),
        (random(1), "fewer than 2 channels or 16 values per channel"),
        (np.full((8, 4, 4, 4), np.nan), "values that are not finite"),
        (np.zeros(4), "no axis 1 of channels in 1 axes"),
        (np.zeros((0, 4, 4, 4)), "empty output in 4 axes"),
    ],
)
def test_outputs_that_cannot_be_judged_are_noted(values: Values, why: str) -> None:
    _, verdict = judge(DeadChannels(), output(values))
    assert verdict.missing == {why: 1}


def test_other_modules_are_left_alone() -> None:
    assert judge(DeadChannels(), output(np.zeros((8, 4, 4, 4)), origin="ReLU"))[1].judged == 0


def test_parameters_come_as_text() -> None:
    rule = load_rule("dead_channels:tensor_regex=conv,fc,threshold_dead=5,tolerance=0,channel_axis=-1")
    assert rule == DeadChannels(tensor_regex="conv,fc", threshold_dead=5.0, tolerance=0.0, channel_axis=-1)


@pytest.mark.parametrize(
    "parameters",
    [
        {"threshold_dead": 101.0},
        {"threshold_duplicate": -1.0},
        {"tolerance": 1.0},
        {"min_values": 1},
        {"tensor_regex": "("},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DeadChannels(**parameters)


def test_the_channels_of_a_linear_layer_are_its_last_axis_however_many_axes_there_are() -> None:
    values = np.moveaxis(random(32, batch=4, space=(2, 3)), 1, -1).copy()  # (batch, height, width, channel)
    values[..., :8] = 0.0
    (finding,) = judge(DeadChannels(), output(values, origin="Linear"))[0]
    assert (finding.numbers["kind"], finding.numbers["dead"], finding.numbers["channels"]) == ("dead", 8, 32)


def test_reasons_do_not_multiply_with_the_shapes_of_what_cannot_be_judged() -> None:
    trace = Trace()
    for step in range(1, 30):
        trace.add(step, NAME, "output", np.ones(step), origin="Conv2d", payload=True)
    assert judge(DeadChannels(), trace)[1].missing == {"no axis 1 of channels in 1 axes": 29}


def test_complex_numbers_are_not_judged_by_their_real_part() -> None:
    values = np.zeros((8, 4, 4, 4), dtype=np.complex64)
    trace = Trace().add(0, NAME, "output", values, origin="Conv2d", payload=True, statistics=False)
    (reason,) = judge(DeadChannels(), trace)[1].missing
    assert "complex numbers" in reason


def test_an_output_of_zeros_since_the_start_is_reported_at_the_third_saved_step() -> None:
    def steps(*sizes: float) -> list[int]:
        trace = Trace()
        for step, size in enumerate(sizes):
            values = size * np.random.default_rng(step).normal(size=(16, 4))
            trace.add(step, "b_output_0", "output", values, origin="Linear", payload=True)
        return [finding.step for finding in same_in_any_cuts(DeadChannels(), trace)]

    assert steps(0.0, 0.0, 0.0, 0.0) == [2, 3]
    assert steps(0.0, 0.0, 1.0) == []
    assert steps(1.0, 0.0) == [1]
