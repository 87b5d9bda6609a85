"""The note "eval_in_training": modules that are in eval mode while a training step is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from .conftest import MakeHook, ReadRun


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.drop(self.norm(self.fc(x)))


def norm_in_eval(model: Net, step: int) -> None:
    model.norm.eval()


def linear_in_eval(model: Net, step: int) -> None:
    model.fc.eval()


def model_in_eval(model: Net, step: int) -> None:
    model.eval()


def model_in_eval_once(model: Net, step: int) -> None:
    model.train(step != 3)


def norm_in_eval_at_first(model: Net, step: int) -> None:
    model.norm.train(step > 2)


@pytest.mark.parametrize(
    ("change", "noted"),
    [
        (lambda model, step: None, None),
        (linear_in_eval, None),  # a linear layer computes the same in both modes
        (norm_in_eval, {"norm": "always"}),
        (norm_in_eval_at_first, {"norm": "at some steps"}),
        (model_in_eval, {"Net": "always"}),
        (model_in_eval_once, {"Net": "at some steps"}),
    ],
)
def test_modules_in_eval_mode_are_noted(
    make_hook: MakeHook,
    read_run: ReadRun,
    change: Callable[[Net, int], None],
    noted: dict[str, str] | None,
) -> None:
    hook, model = make_hook(), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        model.train()
        change(model, step)
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    hook.close()
    assert read_run(hook).trial.notes().get("eval_in_training") == noted


def test_an_evaluation_is_not_noted(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model.train()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(torch.randn(8, 4))
    hook.close()
    assert "eval_in_training" not in read_run(hook).trial.notes()


def test_two_models_and_wrapped_ones_are_noted_under_the_names_of_their_outputs(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, first, second = make_hook(save_all=True), Net(), Net()
    wrapped = nn.DataParallel(first)
    hook.register_module(wrapped)
    hook.register_module(second)
    for _ in range(4):
        first.norm.eval()
        for model in (wrapped, second):
            model(torch.randn(8, 4)).square().mean().backward()
    hook.close()
    noted = read_run(hook).trial.notes()["eval_in_training"]
    assert list(noted.values()) == ["always"]
    assert f"{next(iter(noted))}_output_0" in read_run(hook).names()
