"""MismatchedLoss: a softmax or sigmoid applied twice, a likelihood loss of logits, broadcast shapes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tdcore.errors import ConfigError
from tdcore.rules import MismatchedLoss, Status
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import CLASSES, FEATURES, blobs, judge_run, network, train

INPUTS = (r"Loss_input_[01]$",)


class Regression(nn.Module):
    """One number per sample, with shape (batch, 1) or, if flat, (batch,)."""

    def __init__(self, *, flat: bool) -> None:
        super().__init__()
        self.fc, self.flat = nn.Linear(FEATURES, 1), flat

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.fc(inputs)
        return torch.as_tensor(found[:, 0] if self.flat else found)


def with_targets(steps: int, classes: int = 1) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for inputs, labels in blobs(steps):
        yield inputs, (labels % 2).float() if classes == 1 else torch.eye(classes)[labels]


def inputs_of(values: list[float], *, name: str = "BCEWithLogitsLoss_input_0", steps: int = 5) -> Trace:
    trace = Trace()
    for step in range(steps):
        trace.add(step, name, "input", np.array(values)[:, None])
        trace.add(step, name.replace("input_0", "output_0"), "loss", 1.0)
    return trace


@pytest.mark.proves("TDC130", "fires")
def test_a_softmax_before_the_cross_entropy_is_found(tmp_path: Path) -> None:
    model = nn.Sequential(network(), nn.Softmax(dim=1))
    place = train(tmp_path, model, blobs(8), regex=INPUTS)
    ((finding,), _) = judge_run(MismatchedLoss(), place)
    assert (finding.step, finding.tensor) == (4, "CrossEntropyLoss_input_0")
    assert finding.numbers["kind"] == "softmax_twice"
    assert "remove the softmax" in finding.do


def test_a_likelihood_of_logits_is_found(tmp_path: Path) -> None:
    place = train(tmp_path, network(), blobs(8), regex=INPUTS, criterion=nn.NLLLoss())
    ((finding,), _) = judge_run(MismatchedLoss(), place)
    assert finding.numbers["kind"] == "not_logarithms"
    assert "log_softmax" in finding.do


def test_a_sigmoid_before_a_loss_of_logits_is_found(tmp_path: Path) -> None:
    model = nn.Sequential(network(), nn.Sigmoid())
    place = train(tmp_path, model, with_targets(8, CLASSES), regex=INPUTS, criterion=nn.BCEWithLogitsLoss())
    ((finding,), _) = judge_run(MismatchedLoss(), place)
    assert finding.numbers["kind"] == "sigmoid_twice"


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_squared_error_of_shapes_that_are_broadcast_is_found(tmp_path: Path) -> None:
    place = train(tmp_path, Regression(flat=False), with_targets(8), regex=INPUTS, criterion=nn.MSELoss())
    ((finding,), _) = judge_run(MismatchedLoss(), place)
    assert finding.numbers["kind"] == "broadcast"
    assert "[32, 1]" in finding.why
    assert "[32, 32]" in finding.why


@pytest.mark.proves("TDC130", "quiet")
def test_the_same_losses_with_what_they_expect_stay_quiet(tmp_path: Path) -> None:
    whole = {
        "cross_entropy": (network(), blobs(8), nn.CrossEntropyLoss()),
        "likelihood": (nn.Sequential(network(), nn.LogSoftmax(dim=1)), blobs(8), nn.NLLLoss()),
        "binary": (network(), with_targets(8, CLASSES), nn.BCEWithLogitsLoss()),
        "probabilities": (
            nn.Sequential(network(), nn.Sigmoid()), with_targets(8, CLASSES), nn.BCELoss()
        ),
        "squares": (Regression(flat=True), with_targets(8), nn.MSELoss()),
    }  # fmt: skip
    for name, (model, batches, loss) in whole.items():
        place = train(tmp_path / name, model, batches, regex=INPUTS, criterion=loss)
        found, verdict = judge_run(MismatchedLoss(), place)
        assert not found, name
        assert verdict.status is Status.NO_ISSUE
        assert verdict.judged > 0


@pytest.mark.proves("TDC130", "not evaluable")
def test_a_run_with_losses_only_is_not_evaluable_and_the_fix_names_the_inputs(losses_run: Path) -> None:
    _, verdict = judge_run(MismatchedLoss(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="loss_inputs"' in verdict.fix


@pytest.mark.proves("TDC130", "boundary")
def test_values_from_0_to_1_are_probabilities_and_a_single_one_outside_makes_logits_of_them() -> None:
    assert same_in_any_cuts(MismatchedLoss(), inputs_of([0.0, 0.5, 1.0]))
    assert not same_in_any_cuts(MismatchedLoss(), inputs_of([-0.01, 0.5, 1.0]))
    assert not same_in_any_cuts(MismatchedLoss(), inputs_of([0.0, 0.5, 1.01]))


@pytest.mark.proves("TDC130", "boundary")
def test_logarithms_may_be_above_zero_by_rounding_only() -> None:
    name = "NLLLoss_input_0"
    assert not judge(MismatchedLoss(), inputs_of([-2.0, 0.001], name=name))[0]
    assert judge(MismatchedLoss(), inputs_of([-2.0, 0.0011], name=name))[0]


def test_other_likelihoods_take_any_values() -> None:
    assert not judge(MismatchedLoss(), inputs_of([-2.0, 3.0], name="GaussianNLLLoss_input_0"))[0]
    assert not judge(MismatchedLoss(), inputs_of([-2.0, 3.0], name="PoissonNLLLoss_input_0"))[0]


def test_a_patience_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError):
        MismatchedLoss(patience=2)
