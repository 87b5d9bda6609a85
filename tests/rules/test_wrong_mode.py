"""WrongMode: eval mode in training steps; gradients and updates in EVAL steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.errors import ConfigError
from tdcore.hooks.pytorch import Hook
from tdcore.rules import Status, WrongMode
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import CLASSES, FEATURES, blobs, judge_run, train

W = "Net_fc.weight"


def with_dropout() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES))


def fit(place: Path, *, updates: bool = False, forget_train: bool = False) -> Path:
    """Train three epochs with validation.

    updates: the validation trains, too. forget_train: no model.train().
    """
    model = with_dropout()
    hook = Hook(
        place,
        save_config=td.SaveConfig(save_interval=1),
        include_collections=["weights", "gradients", "losses"],
        ring=td.RingConfig(ring_bytes=1 << 24),
        flusher="thread",
    )
    hook.register_module(model)
    loss, stepper = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    if forget_train:
        model.eval()
    for _ in range(3):
        if not forget_train:
            model.train()
        for inputs, labels in blobs(6):
            stepper.zero_grad()
            loss(model(inputs), labels).backward()
            stepper.step()
        model.eval()
        with torch.no_grad():
            for inputs, labels in blobs(4, seed=1):
                loss(model(inputs), labels)
                if updates:
                    for parameter in model.parameters():
                        parameter.add_(0.01)
    hook.close()
    return place


def weights(*values: float, mode_steps: list[int] | None = None, steps: list[int] | None = None) -> Trace:
    trace = Trace()
    for at, value in enumerate(values):
        step = steps[at] if steps else at
        mode_step = mode_steps[at] if mode_steps else at
        trace.add(step, W, "weight", [value, 2 * value], mode="EVAL", mode_step=mode_step)
    return trace


@pytest.mark.proves("TDC129", "fires")
def test_a_dropout_that_stays_in_eval_mode_is_found(tmp_path: Path) -> None:
    model = with_dropout()
    model[2].eval()
    place = train(tmp_path, model, blobs(12), collections=["weights", "gradients"])
    ((finding,), _) = judge_run(WrongMode(), place)
    assert finding.numbers["kind"] == "eval_while_training"
    assert (finding.step, finding.tensor) == (9, "2_output_0")
    assert "model.train()" in finding.do


def test_a_model_that_is_trained_in_eval_mode_is_found(tmp_path: Path) -> None:
    found, _ = judge_run(WrongMode(), fit(tmp_path, forget_train=True))
    assert [finding.numbers["kind"] for finding in found] == ["eval_while_training"]
    assert found[0].why == "the model stays in eval mode while the model is trained"


def test_weights_that_change_within_an_evaluation_are_found(tmp_path: Path) -> None:
    found, _ = judge_run(WrongMode(), fit(tmp_path, updates=True))
    assert {finding.numbers["kind"] for finding in found} == {"eval_update"}
    assert {(finding.mode, finding.mode_step) for finding in found} == {
        ("EVAL", step) for step in (2, 3, 5, 6, 7, 9, 10, 11)
    }


@pytest.mark.proves("TDC129", "quiet")
def test_a_training_with_validation_stays_quiet(tmp_path: Path) -> None:
    found, verdict = judge_run(WrongMode(), fit(tmp_path))
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


def test_a_frozen_normalisation_in_eval_mode_stays_quiet(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES))
    model[1].eval().requires_grad_(False)
    place = train(tmp_path, model, blobs(12), collections=["weights", "gradients"])
    assert not judge_run(WrongMode(), place)[0]


@pytest.mark.proves("TDC129", "not evaluable")
def test_a_run_with_losses_only_is_not_evaluable(losses_run: Path) -> None:
    _, verdict = judge_run(WrongMode(), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="weights"' in verdict.fix


@pytest.mark.proves("TDC129", "boundary")
def test_weights_may_differ_where_another_step_is_between_two_eval_steps() -> None:
    assert same_in_any_cuts(WrongMode(), weights(1.0, 1.5, 2.0))
    assert not same_in_any_cuts(WrongMode(), weights(1.0, 1.5, 2.0, steps=[0, 2, 3]))
    assert not same_in_any_cuts(WrongMode(), weights(1.0, 1.5, 2.0, steps=[0, 1, 2], mode_steps=[0, 2, 3]))
    assert not same_in_any_cuts(WrongMode(), weights(1.0, 1.0, 1.0))


def test_other_weights_that_are_loaded_between_two_evaluations_stay_quiet() -> None:
    """The best checkpoint is loaded after the last validation, then the test set runs in EVAL mode."""
    assert not same_in_any_cuts(WrongMode(), weights(1.0, 1.0, 1.0, 2.0, 2.0, 2.0))


def test_a_gradient_in_eval_mode_is_found_unless_it_is_zero() -> None:
    trace = Trace()
    for step, size in enumerate((0.0, 0.1)):
        trace.add(step, f"gradient/{W}", "gradient", size * np.ones(3), mode="EVAL")
    ((finding,), _) = judge(WrongMode(), trace)
    assert (finding.step, finding.numbers["kind"]) == (1, "eval_gradient")


def test_a_patience_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError):
        WrongMode(patience=2)
