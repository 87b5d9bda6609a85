"""AllZero: the share of zeros, the selected tensors, and the patience."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tdcore.errors import ConfigError
from tdcore.rules import AllZero, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network, train

W = "gradient/Net_fc.weight"


def zeros(*counts: int, of: int = 10, kind: str = "gradient", name: str = W) -> Trace:
    """Return a trace of a tensor with this many zeros at steps 0, 1, 2, ..."""
    trace = Trace()
    for step, count in enumerate(counts):
        trace.add(step, name, kind, np.r_[np.zeros(count), np.ones(of - count)])
    return trace


class CutOff(nn.Module):
    """Two branches; a gate of zero multiplies one of them, so its layer gets no gradient."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.one, self.other = network(), network()
        self.gate = gate

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.one(inputs) + self.gate * self.other(inputs))


@pytest.mark.proves("TDC119", "fires")
def test_the_gradients_of_a_branch_that_is_cut_off_are_found(tmp_path: Path) -> None:
    place = train(tmp_path, CutOff(0.0), blobs(4), collections=["weights", "gradients"])
    found, _ = judge_run(AllZero(), place)
    assert {finding.tensor for finding in found} == {
        f"gradient/CutOff_other.{layer}.{part}" for layer in (0, 2, 4) for part in ("weight", "bias")
    }
    assert {finding.step for finding in found} == {2}


@pytest.mark.proves("TDC119", "quiet")
def test_the_same_network_with_an_open_gate_stays_quiet(tmp_path: Path) -> None:
    place = train(tmp_path, CutOff(1.0), blobs(4), collections=["weights", "gradients"])
    found, verdict = judge_run(AllZero(), place)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.proves("TDC119", "not evaluable")
def test_a_run_with_losses_only_is_not_evaluable_and_the_fix_names_the_collections(losses_run: Path) -> None:
    _, verdict = judge_run(AllZero(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="weights"' in verdict.fix
    assert 'CollectionConfig(name="gradients"' in verdict.fix


@pytest.mark.proves("TDC119", "boundary")
def test_the_threshold_itself_fires_and_one_zero_less_does_not() -> None:
    assert judge(AllZero(patience=1), zeros(10))[0]
    assert not judge(AllZero(patience=1), zeros(9))[0]
    assert judge(AllZero(patience=1, threshold=90.0), zeros(9))[0]
    assert not judge(AllZero(patience=1, threshold=90.0), zeros(8))[0]


def test_a_tensor_is_reported_once_until_it_has_recovered() -> None:
    found = same_in_any_cuts(AllZero(), zeros(10, 10, 10, 5, 10, 5, 10, 10, 10))
    assert [finding.step for finding in found] == [2, 8]


def test_tensors_calls_modes_and_workers_are_followed_apart() -> None:
    trace = Trace()
    for step in range(4):
        trace.add(step, W, "gradient", [0.0], worker=f"worker_{step % 2}", call=step // 2)
        trace.add(step, "a", "weight", [0.0], mode="TRAIN" if step % 2 else "EVAL")
    found = same_in_any_cuts(AllZero(patience=2), trace)
    assert [(finding.step, finding.tensor, finding.mode) for finding in found] == [
        (2, "a", "EVAL"),
        (3, "a", "TRAIN"),
    ]


def test_gradients_of_a_loss_of_zero_are_not_judged() -> None:
    for loss, expected in ((0.0, []), (1e-30, [2])):
        trace = Trace()
        for step in range(5):
            trace.add(step, W, "gradient", [0.0])
            trace.add(step, "TripletMarginLoss_output_0", "loss", loss)
        assert [finding.step for finding in same_in_any_cuts(AllZero(), trace)] == expected


def test_other_tensors_can_be_named() -> None:
    trace = zeros(10, kind="output", name="Net_output_0")
    assert judge(AllZero(patience=1), trace)[1].status is Status.NOT_EVALUABLE
    assert judge(AllZero(patience=1, tensor_regex="output"), trace)[0]
    assert judge(load_rule("all_zero:collection_names=outputs,losses,threshold=99.5,patience=1"), trace)[0]


def test_nan_is_not_zero_and_a_tensor_without_elements_is_not_judged() -> None:
    trace = Trace().add(0, W, "gradient", [np.nan, 0.0]).add(0, "gradient/e", "gradient", np.empty(0))
    found, verdict = judge(AllZero(patience=1), trace)
    assert not found
    assert verdict.judged == 1


@pytest.mark.parametrize(
    "parameters", [{"threshold": 0.0}, {"threshold": 101.0}, {"patience": 0}, {"tensor_regex": "("}]
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        AllZero(**parameters)
