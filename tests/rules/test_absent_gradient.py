"""AbsentGradient: parameters without a gradient, without an optimizer, and layers that are never called."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tdcore.errors import ConfigError
from tdcore.rules import AbsentGradient, Engine, Status
from tdcore.rules.trace import Trace
from tests.rules.judging import LookByLook, judge, same_in_any_cuts
from tests.rules.trainings import FEATURES, blobs, judge_run, network, train

ENCODER, HEAD = "gradient/Net_encoder.weight", "gradient/Net_head.weight"


class Autoencoder(nn.Module):
    """An encoder and a classifier behind it.

    cut: detaches the encoder's output. spare: a layer never called.
    """

    def __init__(self, *, cut: bool = False, spare: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, FEATURES)
        self.head = network()
        if spare:
            self.spare = nn.Linear(FEATURES, FEATURES)
        self.cut = cut

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        code = self.encoder(inputs)
        return torch.as_tensor(self.head(code.detach() if self.cut else code))


def steps_of(*present: bool, reason: str = "no_backward", other: bool = True) -> Trace:
    """Return a trace of an encoder with a gradient at some steps, and a head with a gradient at all steps."""
    trace = Trace()
    for step, has_one in enumerate(present):
        if has_one:
            trace.add(step, ENCODER, "gradient", np.ones(4))
        else:
            trace.add(step, ENCODER, "gradient", None, status="absent", reason=reason)
        if other:
            trace.add(step, HEAD, "gradient", np.ones(4))
    return trace


@pytest.mark.proves("TDC128", "fires")
def test_a_detached_encoder_is_found_while_the_loss_falls(tmp_path: Path) -> None:
    place = train(tmp_path, Autoencoder(cut=True), blobs(12), collections=["gradients"])
    found, _ = judge_run(AbsentGradient(), place)
    (finding,) = found
    assert (finding.step, finding.tensor) == (9, "gradient/Autoencoder_encoder.weight")
    assert finding.numbers["kind"] == "no_backward"
    assert finding.numbers["tensors"] == 2
    assert "detach()" in finding.do


def test_parameters_that_no_optimizer_holds_are_found(tmp_path: Path) -> None:
    def of_the_head(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(parameters)[2:], lr=0.1)  # type: ignore[call-overload]

    place = train(tmp_path, Autoencoder(), blobs(12), collections=["gradients"], optimizer=of_the_head)
    ((finding,), _) = judge_run(AbsentGradient(), place)
    assert finding.numbers["kind"] == "not_owned"
    assert finding.why == (
        "no optimizer holds Autoencoder_encoder.weight, Autoencoder_encoder.bias, although they have "
        "gradients"
    )


def test_a_layer_that_is_never_called_is_found(tmp_path: Path) -> None:
    place = train(tmp_path, Autoencoder(spare=True), blobs(12), collections=["gradients", "outputs"])
    ((finding,), _) = judge_run(AbsentGradient(), place)
    assert finding.numbers["kind"] == "never_called"
    assert finding.tensor == "gradient/Autoencoder_spare.weight"


@pytest.mark.proves("TDC128", "quiet")
def test_the_same_network_with_a_whole_graph_stays_quiet(tmp_path: Path) -> None:
    place = train(tmp_path, Autoencoder(), blobs(12), collections=["gradients"])
    found, verdict = judge_run(AbsentGradient(), place)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


def test_a_frozen_encoder_stays_quiet(tmp_path: Path) -> None:
    model = Autoencoder()
    model.encoder.requires_grad_(False)
    place = train(tmp_path, model, blobs(12), collections=["gradients"])
    assert not judge_run(AbsentGradient(), place)[0]


@pytest.mark.proves("TDC128", "not evaluable")
def test_a_run_with_losses_only_is_not_evaluable(losses_run: Path) -> None:
    _, verdict = judge_run(AbsentGradient(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="gradients"' in verdict.fix


@pytest.mark.proves("TDC128", "boundary")
def test_it_judges_at_the_step_of_its_patience_and_one_gradient_before_that_is_enough() -> None:
    found = same_in_any_cuts(AbsentGradient(patience=4), steps_of(False, False, False, False, True))
    assert [finding.step for finding in found] == [3]
    assert not same_in_any_cuts(AbsentGradient(patience=4), steps_of(False, False, False, True, False))


def test_a_training_that_ends_early_is_judged_from_three_steps_on() -> None:
    assert [finding.step for finding in judge(AbsentGradient(), steps_of(False, False, False))[0]] == [2]
    found, verdict = judge(AbsentGradient(), steps_of(False, False))
    assert not found
    assert verdict.status is Status.NOT_EVALUABLE
    assert "fewer than 3 saved training steps so far" in verdict.reason


def test_a_gradient_that_is_absent_for_another_reason_is_no_sign() -> None:
    assert not judge(AbsentGradient(), steps_of(*[False] * 12, reason="not_stepped"))[0]


def test_without_any_gradient_it_is_silent() -> None:
    assert not judge(AbsentGradient(), steps_of(*[False] * 12, other=False))[0]


def test_each_worker_is_judged_once() -> None:
    trace = Trace()
    for step in range(12):
        for worker in ("worker_0", "worker_1"):
            trace.add(step, ENCODER, "gradient", None, status="absent", reason="no_backward", worker=worker)
            trace.add(step, HEAD, "gradient", np.ones(4), worker=worker)
    found = same_in_any_cuts(AbsentGradient(), trace)
    assert [(finding.worker, finding.step) for finding in found] == [("worker_0", 9), ("worker_1", 9)]


def test_a_patience_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError):
        AbsentGradient(patience=2)


def test_rows_of_one_step_that_come_in_several_windows_are_one_step() -> None:
    trace = Trace()
    for step in range(5):
        for layer in range(4):
            trace.add(step, f"gradient/Net_{layer}.weight", "gradient", [1.0])
    engine = Engine(LookByLook(trace), [AbsentGradient(patience=5)])
    judged = []
    for _ in trace.rows:
        engine.step()
        judged.append(engine.verdicts(finished=False)[0].judged)
    assert judged.index(17) == 16  # with the first row of the fifth step
