"""CheckInputImages: detection of images, statistics per channel, and the number of images that are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tdcore.config.reduction_config import ReductionConfig
from tdcore.errors import ConfigError
from tdcore.rules import CheckInputImages, Engine, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.epochs import Batches, fit
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import judge_run

FEW = CheckInputImages(threshold_samples=4)


def pictures(*, normalised: bool) -> Batches:
    """Return batches of small pictures with a bright left or right half; values in [0, 1], or normalised."""
    random = torch.Generator().manual_seed(0)
    found = []
    for _ in range(10):
        labels = torch.randint(0, 2, (32,), generator=random)
        images = 0.6 * torch.rand(32, 3, 8, 8, generator=random)
        images[labels == 0, :, :, :4] += 0.4
        images[labels == 1, :, :, 4:] += 0.4
        found.append(((images - 0.5) / 0.25 if normalised else images, labels))
    return found


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))


def slow(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-6)


def inputs(
    *batches: Any, name: str = "Net_input_0", origin: str | None = "Net", payload: bool = True
) -> Trace:
    trace = Trace()
    for step, values in enumerate(batches):
        trace.add(step, name, "input", np.asarray(values), origin=origin, payload=payload)
    return trace


def flat(*means: float, images: int = 2) -> Any:
    """Return images with constant channels of these values."""
    return np.ones((images, len(means), 2, 2)) * np.array(means).reshape(1, -1, 1, 1)


@pytest.mark.proves("TDC112", "fires")
def test_pictures_of_bytes_are_found(tmp_path: Path) -> None:
    bytes_ = [(255 * images, labels) for images, labels in pictures(normalised=False)]
    place = fit(tmp_path, convolutional(), bytes_, epochs=1, collections=["inputs"], optimizer=slow)
    (finding,), verdict = judge_run(CheckInputImages(threshold_samples=256), place)
    assert verdict.status is Status.ISSUE
    assert finding.tensor == "Sequential_input_0"
    assert float(finding.numbers["mean"]) == pytest.approx(127, abs=5)
    assert 50 < float(finding.numbers["std_of_channel_0"]) < 75


def test_pictures_from_0_to_1_are_in_order_but_for_the_older_rule(tmp_path: Path) -> None:
    place = fit(tmp_path, convolutional(), pictures(normalised=False), epochs=1, collections=["inputs"])
    assert judge_run(CheckInputImages(threshold_samples=256), place)[1].status is Status.NO_ISSUE
    (finding,), _ = judge_run(CheckInputImages(threshold_samples=256, compat=True), place)
    assert float(finding.numbers["mean"]) == pytest.approx(0.5, abs=0.02)


@pytest.mark.proves("TDC112", "quiet")
def test_normalised_pictures_stay_quiet(tmp_path: Path) -> None:
    place = fit(tmp_path, convolutional(), pictures(normalised=True), epochs=1, collections=["inputs"])
    found, verdict = judge_run(CheckInputImages(threshold_samples=256), place)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged == 1


@pytest.mark.proves("TDC112", "not evaluable")
def test_a_run_without_inputs_is_not_evaluable_and_the_fix_saves_them(losses_run: Path) -> None:
    _, verdict = judge_run(CheckInputImages(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    (capture,) = verdict.captures
    assert capture.name == "input_image"
    (pattern,) = capture.include_regex
    inputs_of = [f"{module}_input_0" for module in ("Net", "Sequential", "features.conv", "CrossEntropyLoss")]
    assert [bool(re.search(pattern, name)) for name in inputs_of] == [True, True, False, False]
    assert capture.reduction_config == ReductionConfig(save_raw_tensor=True)


def test_statistics_alone_and_inputs_that_are_no_images_are_not_evaluable(healthy_run: Path) -> None:
    _, verdict = judge(FEW, inputs(flat(1.0), flat(1.0), payload=False))
    assert "input saved without its values (2 times)" in verdict.reason
    assert "input does not have four axes" in judge_run(CheckInputImages(), healthy_run)[1].reason


@pytest.mark.proves("TDC112", "boundary")
@pytest.mark.parametrize("sign", [1, -1])
def test_a_mean_of_exactly_the_threshold_does_not_fire_and_beyond_it_does(sign: int) -> None:
    rule = CheckInputImages(threshold_samples=2, threshold_mean=0.25)
    assert not judge(rule, inputs(flat(0.0, sign * 0.25, 0.0)))[0]
    (finding,) = judge(rule, inputs(flat(0.0, sign * (0.25 + 1e-9), 0.0)))[0]
    assert finding.numbers["channel"] == 1


@pytest.mark.proves("TDC112", "boundary")
def test_exactly_the_samples_are_enough_and_one_less_is_not() -> None:
    assert judge(FEW, inputs(flat(1.0), flat(1.0)))[0]
    _, verdict = judge(FEW, inputs(flat(1.0), flat(1.0, images=1)))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "fewer than 4 images (3 times)" in verdict.reason


def test_only_the_first_images_count_and_no_others_are_read() -> None:
    trace = inputs(flat(0.0), flat(0.0, images=9), flat(9.0), flat(9.0))
    trace.payloads[1][2:] = 9.0  # after the fourth image
    source = trace.source()
    source._payloads.pop(2)  # reading it would be recorded
    engine = Engine(source, [FEW])
    assert engine.step() == []
    (verdict,) = engine.verdicts(finished=True)
    assert not verdict.missing


def test_channels_are_judged_apart_and_the_worst_is_named() -> None:
    (finding,) = judge(FEW, inputs(flat(0.5, -0.7, 0.1, images=4)))[0]
    assert (finding.numbers["channel"], finding.numbers["mean"]) == (1, -0.7)
    assert finding.numbers["mean_of_channel_0"] == 0.5


def test_the_axis_of_colours_can_be_last() -> None:
    last = np.moveaxis(np.tile(flat(0.5, 0.0, 0.0, images=4), (1, 1, 8, 8)), 1, -1)
    _, verdict = judge(FEW, inputs(last))
    assert "the size of axis 1 is not a number of colour channels: set channel=-1" in verdict.reason
    (finding,) = judge(CheckInputImages(threshold_samples=4, channel=-1), inputs(last))[0]
    assert finding.numbers["channel"] == 0


def test_the_first_convolution_stands_in_for_the_model_whose_input_was_not_saved() -> None:
    trace = Trace()
    for step in range(2):
        for name, origin, value in (
            ("Net_norm_input_0", "BatchNorm2d", 9.0),
            ("Net_conv1_input_0", "Conv2d", 1.0),
            ("Net_conv2_input_0", "Conv2d", 5.0),
        ):
            trace.add(step, name, "input", flat(value), origin=origin, payload=True)
    assert [finding.tensor for finding in same_in_any_cuts(FEW, trace)] == ["Net_conv1_input_0"]


def test_a_pattern_chooses_the_inputs_instead_as_the_older_default_did() -> None:
    trace = inputs(flat(1.0, images=4), name="hybridsequential0_input_0", origin=None)
    assert judge(FEW, trace)[1].status is Status.NOT_EVALUABLE
    older = CheckInputImages(threshold_samples=4, regex=".*hybridsequential0_input_0")
    assert judge(older, trace)[0]


def test_pixels_of_whole_numbers_count_too_and_those_that_are_not_finite_do_not() -> None:
    assert judge(FEW, inputs(np.full((4, 3, 2, 2), 128, np.uint8)))[0]
    _, verdict = judge(FEW, inputs(flat(np.nan, images=4)))
    assert verdict.missing == {"input is not finite": 1}


def test_older_parameters_come_as_text() -> None:
    rule = load_rule("check_input_images:threshold_mean=0.1,threshold_samples=50,regex=.*a,channel=3")
    assert rule == CheckInputImages(threshold_mean=0.1, threshold_samples=50, regex=".*a", channel=3)


@pytest.mark.parametrize(
    "parameters",
    [{"threshold_mean": -1.0}, {"threshold_samples": 0}, {"regex": "("}, {"channel": 0}, {"channel": 4}],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CheckInputImages(**parameters)
