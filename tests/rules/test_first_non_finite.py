"""FirstNonFinite: the first non-finite tensor, and the report about the steps before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tdcore.errors import ConfigError
from tdcore.rules import FirstNonFinite, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network, train

W, G, LOSS = "Net_fc.weight", "gradient/Net_fc.weight", "Loss_output_0"
NAN = float("nan")
CAPTURED = ["weights", "gradients", "outputs"]


def steps(*each: tuple[float, float, float], worker: str = "worker_0", trace: Trace | None = None) -> Trace:
    """Return a trace of (weight, loss, gradient) at steps 0, 1, ..."""
    trace = trace or Trace()
    for step, (weight, loss, gradient) in enumerate(each):
        trace.add(step, W, "weight", [weight], worker=worker)
        trace.add(step, LOSS, "loss", loss, worker=worker)
        trace.add(step, G, "gradient", [gradient], worker=worker)
    return trace


SOUND, SKIPPED, BROKEN = (1.0, 1.0, 1.0), (1.0, 1.0, NAN), (NAN, NAN, NAN)


class Dividing(nn.Module):
    """Divides by a parameter that the test sets to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.body(inputs) / self.scale)


@pytest.mark.proves("TDC123", "fires")
def test_a_division_by_zero_in_the_forward_pass_is_found_where_it_happens(tmp_path: Path) -> None:
    def fault(step: int, model: nn.Module) -> None:
        if step == 2:
            assert isinstance(model, Dividing)
            with torch.no_grad():
                model.scale.zero_()

    place = train(tmp_path, Dividing(), blobs(5), collections=CAPTURED, after_step=fault)
    (finding,) = judge_run(FirstNonFinite(), place)[0]
    assert (finding.step, finding.tensor) == (3, "Dividing_output_0")
    assert finding.numbers["where"] == "forward pass"
    assert finding.numbers["saved_steps_before"] == 3


@pytest.mark.proves("TDC123", "fires")
def test_a_training_that_diverges_tells_how_its_values_grew(tmp_path: Path) -> None:
    place = train(
        tmp_path,
        network(),
        [(1e3 * inputs, labels) for inputs, labels in blobs(12)],
        collections=CAPTURED,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e6),
    )
    (finding,) = judge_run(FirstNonFinite(), place)[0]
    assert finding.numbers["where"] in ("forward pass", "loss")
    assert float(finding.numbers["also_non_finite"]) > 0
    assert float(finding.numbers["growth"]) > 1e3


@pytest.mark.proves("TDC123", "quiet")
def test_a_training_that_learns_stays_quiet(healthy_run: Path) -> None:
    found, verdict = judge_run(FirstNonFinite(), healthy_run)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.proves("TDC123", "not evaluable")
def test_a_run_without_the_named_tensors_is_not_evaluable(losses_run: Path) -> None:
    _, verdict = judge_run(FirstNonFinite(collection_names="gradients"), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="gradients"' in verdict.fix


@pytest.mark.proves("TDC123", "boundary")
@pytest.mark.parametrize(("value", "fires"), [(3e38, False), (np.inf, True), (-np.inf, True), (NAN, True)])
def test_the_largest_number_is_finite_and_what_lies_beyond_is_not(value: float, fires: bool) -> None:
    assert bool(judge(FirstNonFinite(), steps(SOUND, (1.0, value, 1.0)))[0]) == fires


@pytest.mark.proves("TDC123", "boundary")
@pytest.mark.parametrize(("skipped", "fires"), [(3, False), (4, False), (5, True)])
def test_some_steps_with_gradients_alone_are_skipped_by_a_scaler(skipped: int, fires: bool) -> None:
    trace = steps(SOUND, *[SKIPPED] * skipped, SOUND)
    assert [finding.step for finding in same_in_any_cuts(FirstNonFinite(), trace)] == [1] * fires


def test_the_first_in_order_of_capture_is_named_and_the_others_are_counted() -> None:
    (finding,) = same_in_any_cuts(FirstNonFinite(), steps(SOUND, (1.0, NAN, NAN), BROKEN))
    assert (finding.step, finding.tensor, finding.numbers["where"]) == (1, LOSS, "loss")
    assert finding.numbers["also_non_finite"] == 1


def test_a_gradient_that_breaks_the_weights_is_named_although_it_was_held_back() -> None:
    (finding,) = same_in_any_cuts(FirstNonFinite(), steps(SOUND, SKIPPED, BROKEN))
    assert (finding.step, finding.tensor) == (1, G)
    assert finding.numbers["where"] == "backward pass"


def test_a_held_back_gradient_is_told_at_the_end() -> None:
    assert [finding.step for finding in same_in_any_cuts(FirstNonFinite(), steps(SOUND, SKIPPED))] == [1]


def test_without_patience_for_skipped_steps_the_first_gradient_is_told() -> None:
    found = same_in_any_cuts(FirstNonFinite(skipped_steps=0), steps(SOUND, SKIPPED, SOUND))
    assert [finding.step for finding in found] == [1]


def test_what_led_up_to_it_is_told() -> None:
    growing = [(2.0, 4.0**step, 1.0) for step in range(8)]
    (finding,) = same_in_any_cuts(FirstNonFinite(history=3), steps(*growing, (10.0, NAN, NAN)))
    assert finding.numbers["abs_max_before"] == 4.0**7
    assert finding.numbers["growth"] == 16.0
    assert finding.numbers["saved_steps_before"] == 3
    assert finding.numbers["grown_tensor"] == W
    assert finding.numbers["grown_times"] == 5.0
    assert "16 times that of 2 saved steps earlier" in finding.why


def test_a_tensor_that_was_never_sound_has_nothing_before_it() -> None:
    (finding,) = judge(FirstNonFinite(), steps(BROKEN))[0]
    assert "the tensor was not saved before" in finding.why
    assert "growth" not in finding.numbers


def test_each_worker_has_a_first() -> None:
    trace = steps(SOUND, BROKEN, BROKEN)
    steps(SOUND, SOUND, BROKEN, worker="worker_1", trace=trace)
    found = same_in_any_cuts(FirstNonFinite(), trace)
    assert [(finding.worker, finding.step) for finding in found] == [("worker_0", 1), ("worker_1", 2)]


def test_nan_alone_can_be_looked_for() -> None:
    trace = steps(SOUND, (1.0, np.inf, 1.0), BROKEN)
    assert [finding.step for finding in judge(FirstNonFinite(only_nan=True), trace)[0]] == [2]


def test_an_attention_mask_is_meant_to_be_infinite() -> None:
    mask = np.triu(np.full((4, 4), -np.inf), 1)
    assert not judge(FirstNonFinite(), Trace().add(0, "layers_input_mask", "input", mask))[0]
    assert judge(FirstNonFinite(), Trace().add(0, "scores", "output", mask))[0]


def test_parameters_come_as_text() -> None:
    rule = load_rule("first_non_finite:collection_names=losses,outputs,only_nan=true,history=2")
    assert rule == FirstNonFinite(collection_names="losses,outputs", only_nan=True, history=2)


@pytest.mark.parametrize("parameters", [{"history": 0}, {"skipped_steps": -1}, {"tensor_regex": "("}])
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        FirstNonFinite(**parameters)


def test_an_attention_mask_is_not_the_first_fault() -> None:
    trace = Trace()
    for step, loss in enumerate((1.0, 1.0, NAN)):
        trace.add(step, "Net_attention_input_1", "input", np.where(np.tri(3), 0.0, -np.inf))
        trace.add(step, LOSS, "loss", loss)
    assert [(f.step, f.tensor) for f in same_in_any_cuts(FirstNonFinite(), trace)] == [(2, LOSS)]


def test_several_calls_in_a_step_are_one_saved_step_of_the_history() -> None:
    trace = Trace()
    for step, sizes in enumerate([(1.0, 2.0), (4.0, 3.0), (NAN, 1.0)]):
        for call, size in enumerate(sizes):
            trace.add(step, "Net_fc_output_0", "output", [size, 0.5], call=call)
    (finding,) = same_in_any_cuts(FirstNonFinite(), trace)
    assert finding.numbers["saved_steps_before"] == 2
    assert (finding.numbers["abs_max_before"], finding.numbers["growth"]) == (4.0, 2.0)


@pytest.mark.parametrize(("sizes", "advice"), [((1.0, 1e3, 1e6), "clip"), ((1.0, 1.1, 1.2), "log of zero")])
def test_advice_follows_the_growth_before_the_loss_overflowed(sizes: tuple[float, ...], advice: str) -> None:
    trace = Trace()
    for step, size in enumerate((*sizes, float("nan"))):
        trace.add(step, "MSELoss_output_0", "loss", size)
    (finding,) = judge(FirstNonFinite(), trace)[0]
    assert advice in finding.do


def test_only_a_finding_that_may_be_reported_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    finding = FirstNonFinite._finding

    def counting(self: FirstNonFinite, *about: Any) -> Any:
        made.append(1)
        return finding(self, *about)

    monkeypatch.setattr(FirstNonFinite, "_finding", counting)
    found, _ = judge(FirstNonFinite(), steps(*[SOUND, SKIPPED, SOUND] * 20, BROKEN))
    assert [each.step for each in found] == [60]
    assert len(made) == 1
