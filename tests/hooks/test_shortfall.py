"""Missing requested tensors appear in the log, in the run, in `tdcore ls` and in the report of rules."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tdcore.rules import VanishingGradient, run
from tests.waiting import wait_until

from .models import Net, train

EVERY = td.SaveConfig(save_interval=1)
Make = Callable[..., Hook]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(model: nn.Module | None = None, **options: Any) -> Hook:
        options = {"save_config": EVERY, "include_collections": ["gradients"], **options}
        hook = Hook(tmp_path / "run", flusher="thread", **options)
        if model is not None:
            hook.register_module(model)
        return hook

    return make


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def backward_only(model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        model.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()


def noted(hook: Hook) -> list[str]:
    """Close the hook and return the note "not_recorded" of the run, as a reader returns it."""
    hook.close()
    said: list[str] = td.create_trial(hook.out_dir).notes().get("not_recorded", [])
    return said


# Optimizers ---------------------------------------------------------------------------------------------


def test_an_optimizer_that_never_steps_is_said(make: Make) -> None:
    model = Net()
    optimizer = sgd(model)
    hook = make(model)
    backward_only(model, 20)
    (said,) = noted(hook)
    assert said.startswith("no optimizer of the model has stepped: its 20 training forwards are one step, 0")
    assert optimizer.state_dict()["param_groups"]


@pytest.mark.parametrize("interval", [1, 7])  # with 1 the open step is saved, with 7 it is not
def test_an_optimizer_that_no_longer_steps_is_said(make: Make, interval: int) -> None:
    model = Net()
    hook = make(model, save_config=td.SaveConfig(save_interval=interval))
    train(model, sgd(model), steps=5)
    backward_only(model, 15)
    (said,) = noted(hook)
    assert "has stepped since step 5 began: its last 15 training forwards are one step" in said


@pytest.mark.parametrize("by_hand", [True, False])
def test_saved_steps_in_which_no_optimizer_steps_are_counted(make: Make, by_hand: bool) -> None:
    model = Net()
    optimizer = sgd(model)
    hook = make(model, clock="update" if by_hand else "forward")
    hook.register_optimizer(optimizer)
    for step in range(20):
        if by_hand:
            hook.step()
        backward_only(model, 1)
        if step < 4:
            optimizer.step()
    (said,) = noted(hook)
    assert "has stepped in the last 16 of 20 saved training steps" in said


def test_accumulation_that_ends_in_the_middle_is_not_said(make: Make) -> None:
    model = Net()
    optimizer = sgd(model)
    hook = make(model)
    for _ in range(3):
        backward_only(model, 8)
        optimizer.step()
    backward_only(model, 7)
    assert noted(hook) == []


def test_weights_that_are_updated_by_hand_are_not_said(make: Make) -> None:
    model = Net()
    hook = make(model)
    for _ in range(12):
        backward_only(model, 1)
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.1)
    assert noted(hook) == []


# Models -------------------------------------------------------------------------------------------------


def test_a_model_that_was_not_registered_is_said(make: Make) -> None:
    model = Net()
    hook = make(include_collections=["weights", "gradients"])
    train(model, sgd(model), steps=3)
    (said,) = noted(hook)
    assert said == (
        "weights, gradients: no model was registered; call register_module(model) before the training"
    )


def test_a_hook_that_recorded_nothing_at_all_is_said(make: Make) -> None:
    assert "anything: no model was registered" in noted(make(include_collections=[]))[0]


def test_a_hook_for_scalars_alone_has_all_that_was_asked(make: Make) -> None:
    hook = make(include_collections=[])
    hook.save_scalar("accuracy", 0.5)
    assert noted(hook) == []


def test_a_model_that_no_step_saved_is_said(make: Make) -> None:
    model = Net()
    hook = make(model, save_config=td.SaveConfig(start_step=1000))
    train(model, sgd(model), steps=3)
    assert "no step was saved: save_config selects no step (steps so far: 3)" in noted(hook)


def test_a_training_that_failed_in_its_first_step_is_explained_by_that(make: Make) -> None:
    model = Net()
    with pytest.raises(RuntimeError), make(model) as hook:
        model(torch.randn(5, 3))
    assert noted(hook) == []


# Collections and patterns -------------------------------------------------------------------------------


def test_a_misspelt_collection_is_said_with_the_one_that_was_meant(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    model = Net()
    with caplog.at_level(logging.WARNING, "tdcore"):
        hook = make(model, include_collections=["gradiens"])
        train(model, sgd(model), steps=3)
        assert "collection 'gradiens' is empty" in caplog.text
        (said,) = noted(hook)
    assert said.endswith("; did you mean 'gradients'?")
    assert caplog.text.count("not recorded: ") == 1


def test_a_pattern_that_matches_nothing_is_said_with_what_was_meant(make: Make) -> None:
    model = Net()
    hook = make(model, include_collections=[], include_regex=["^fc3_output", "relu_output"])
    hook.get_collection("mine").include("gradient/Net_fc1.wieght")
    hook.get_collection("mine").add_tensor_name("fc2_outptu_0")
    hook.add_collection(td.CollectionConfig(name="by class", module_regex="Conv2d_output"))
    hook.add_collection(hook.get_collection("mine"))
    train(model, sgd(model), steps=3)
    said = noted(hook)
    assert [each.partition(";")[0] for each in said] == [
        "pattern '^fc3_output' matches no tensor",
        "module_regex 'Conv2d_output' of collection 'by class' matches no module",
        "pattern 'gradient/Net_fc1.wieght' of collection 'mine' matches no tensor",
        "tensor 'fc2_outptu_0' of collection 'mine' did not exist at any saved step",
    ]
    assert "did you mean 'gradient/Net_fc1.weight'?" in said[2]
    assert "did you mean 'fc2_output_0'?" in said[3]


def test_losses_that_were_asked_for_and_never_came_are_said(make: Make) -> None:
    model = Net()
    hook = make(model, include_collections=["losses"])
    train(model, sgd(model), steps=3)
    assert "register_loss()" in noted(hook)[0]


def test_the_defaults_of_watch_ask_for_no_loss(tmp_path: Path) -> None:
    model = Net()
    hook = td.watch(model, tmp_path / "run", save_interval=1)
    train(model, sgd(model), steps=3)
    assert noted(hook) == []


def test_evaluations_alone_lack_no_gradient(make: Make) -> None:
    model = Net().eval()
    hook = make(model, include_collections=["gradients", "losses", "outputs"])
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(5, 4))
    assert noted(hook) == []


def test_frozen_parameters_lack_no_gradient(make: Make) -> None:
    model = Net().requires_grad_(False)
    hook = make(model)
    for _ in range(3):
        model(torch.randn(5, 4))
    assert noted(hook) == []


def test_a_module_that_no_saved_step_called_matches_its_pattern(make: Make) -> None:
    class Branches(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc1(x)  # type: ignore[no-any-return]

    model = Branches()
    hook = make(model, include_collections=[], include_regex="relu_output")
    train(model, sgd(model), steps=3)
    assert noted(hook) == []


def test_a_collection_that_no_step_was_due_for_lacks_nothing(make: Make) -> None:
    model = Net()
    hook = make(model)
    late = td.CollectionConfig(name="late", include_regex="no_such", save_config=td.SaveConfig(start_step=99))
    hook.add_collection(late)
    train(model, sgd(model), steps=3)
    assert noted(hook) == []


def test_patterns_of_rules_are_not_what_the_user_asked_for(make: Make) -> None:
    model = nn.Linear(4, 3)
    hook = make(model, include_collections=[], rules=["dead_relu", "vanishing_gradient"])
    train(model, sgd(model), steps=3)
    assert noted(hook) == []


@pytest.mark.parametrize("registered", [True, False])
def test_a_hook_that_is_dropped_without_close_says_it_too(
    tmp_path: Path, registered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def main() -> None:
        model = Net()
        hook = Hook(tmp_path / "run", save_config=EVERY, include_collections=["gradients"])
        if registered:
            hook.register_module(model)
        optimizer = sgd(model)
        backward_only(model, 20)
        optimizer.zero_grad()

    with caplog.at_level(logging.WARNING, "tdcore"):
        main()
    trial = td.create_trial(tmp_path / "run")

    def ended() -> bool:
        trial.refresh()
        return trial.status != "running"

    wait_until(ended, "the flusher ended")
    (said,) = trial.notes()["not_recorded"]
    assert ("20 training forwards" in said) if registered else ("no model was registered" in said)
    assert f"not recorded: {said}" in caplog.text


# Places where the note is shown -------------------------------------------------------------------------


def test_the_report_of_rules_and_tdcore_ls_show_it(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    from tdcore.cli.app import app

    model = Net()
    hook = make(model, include_collections=["gradients"], include_regex="no_such")
    train(model, sgd(model), steps=3)
    (said,) = noted(hook)
    report = run(hook.out_dir, [VanishingGradient()])
    assert report.not_recorded == (said,)
    assert report.to_json()["not_recorded"] == [said]
    for command in (["ls", hook.out_dir], ["rules", "run", hook.out_dir, "-r", "TDC101"]):
        with pytest.raises(SystemExit):
            app(command)
        assert f"not recorded: {said}" in " ".join(capsys.readouterr().out.split())
