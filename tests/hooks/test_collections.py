"""Collections of a hook in a training: the tensors that they select, and when these are saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.config.built_in_collections import OLDER_REGEX
from tdcore.config.collection_config import CollectionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.hooks.pytorch import Hook
from tdcore.modes import ModeKeys

from .conftest import MakeHook, ReadRun
from .models import Net, train

EVERY_SECOND = {ModeKeys.TRAIN: SaveConfigMode(save_interval=2)}


class Odd(nn.Module):
    """A module whose parameter names do not contain "weight"."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.ones(4))
        self.kernel = nn.Parameter(torch.ones(4, 4))
        self.gamma = nn.Parameter(torch.ones(4))
        self.in_proj_bias = nn.Parameter(torch.ones(4))
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(x @ self.kernel * self.gamma + self.cls_token + self.in_proj_bias)
        return y


def names_saved(hook: Hook, model: nn.Module, read_run: ReadRun) -> list[str]:
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    run = read_run(hook)
    return run.trial.tensor_names()


def test_weights_are_all_parameters_that_are_not_biases(make_hook: MakeHook, read_run: ReadRun) -> None:
    found = names_saved(make_hook(include_collections=["weights"]), Odd(), read_run)
    assert found == ["Odd_cls_token", "Odd_fc.weight", "Odd_gamma", "Odd_kernel"]


def test_the_older_patterns_may_be_put_back(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook = make_hook(include_collections=["weights"])
    hook.get_collection("weights").include_regex = OLDER_REGEX["weights"]
    assert names_saved(hook, Odd(), read_run) == ["Odd_fc.weight"]


def test_a_pattern_that_is_appended_to_the_list_is_saved(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook = make_hook(include_collections=["custom"])
    hook.get_collection("custom").include_regex.append("relu")
    hook.get_collection("custom").include_regex.append("^Net_fc1")
    found = names_saved(hook, Net(), read_run)
    assert found == ["Net_fc1.bias", "Net_fc1.weight", "relu_input_0", "relu_output_0"]


def evaluate_and_train(model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model.eval()
        with torch.no_grad():
            model(torch.ones(1, 4))
        model.train()


def by_setting(hook: Hook) -> None:
    hook.get_collection("outputs").save_config = EVERY_SECOND


def by_configuration(hook: Hook) -> None:
    hook.add_collection(CollectionConfig(name="outputs", save_config=EVERY_SECOND))  # type: ignore[arg-type]


@pytest.mark.parametrize("configure", [by_setting, by_configuration])
def test_modes_that_a_collection_does_not_name_follow_the_hook(
    make_hook: MakeHook, read_run: ReadRun, configure: Any
) -> None:
    hook, model = make_hook(include_collections=["outputs"], save_config=SaveConfig(save_interval=3)), Net()
    configure(hook)
    hook.register_module(model)
    evaluate_and_train(model, 7)
    trial = read_run(hook).trial
    output = trial.tensor("fc2_output_0")
    assert output.steps(ModeKeys.TRAIN) == [0, 2, 4, 6]
    assert output.steps(ModeKeys.EVAL) == [0, 3, 6]
    document = json.loads((Path(hook.out_dir) / "collections.json").read_text())
    saved = document["attempts"]["0"]["collections"]["outputs"]["save_config"]
    assert [saved[mode]["save_interval"] for mode in ("TRAIN", "EVAL")] == [2, 3]


def test_a_rule_leaves_the_modes_that_a_collection_does_not_name_to_the_hook(tmp_path: Path) -> None:
    config = td.config.HookConfig(
        out_dir=str(tmp_path / "run"),
        save_config=SaveConfig(save_interval=3),
        collections=[CollectionConfig(name="gradients", save_config=EVERY_SECOND)],  # type: ignore[arg-type]
    )
    hook = Hook.from_config(config, rules=["vanishing_gradient"])
    hook.close()
    when = hook.get_collection("gradients").save_config
    assert when is not None
    assert when.should_save_step(ModeKeys.EVAL, 3)
    assert when.should_save_step(ModeKeys.TRAIN, 2)


def test_a_save_config_as_json_names_the_modes_that_it_has() -> None:
    config = CollectionConfig(name="mine", save_config=EVERY_SECOND)  # type: ignore[arg-type]
    assert list(config.to_json_dict()["save_config"]) == ["TRAIN"]
